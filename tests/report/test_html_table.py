"""Tables of the page."""

from rscfed_jax.report.html_table import Entry, html_table


def test_only_a_sortable_table_says_where_its_columns_begin():
    rows = [[Entry("a"), Entry("1", 1.0)]]
    table = html_table("x", ["Run", "Error"], rows, sorted_by="Error", lowest_first=["Error"])
    assert '<table id="x" data-sortable>' in table
    assert '<th scope="col" data-first="ascending" aria-sort="descending">Error</th>' in table
    assert "data-" not in html_table("x", ["Run", "Error"], rows, sortable=False).partition("<tbody>")[0]


def test_the_best_are_strong_and_deviations_small():
    table = html_table("x", ["Run", "Accuracy"], [[Entry("a"), Entry("70.10 ± 0.50", 0.701, is_best=True)]])
    assert "<strong>70.10 <small>± 0.50</small></strong>" in table


def test_names_break_between_their_parts_and_nowhere_inside_an_entity():
    table = html_table("x", ["Run", "Path"], [[Entry("a_b"), Entry("c/d<&", is_text=True)]])
    assert ">a_<wbr>b<" in table
    assert ">c/<wbr>d&lt;&amp;<" in table


def test_a_long_text_is_folded_between_its_ends():
    text = "start/" + "x" * 50 + "/the_end.npz"
    table = html_table("x", ["Run", "Path"], [[Entry("a"), Entry(text, is_text=True)]])
    assert "<details><summary>start/" in table.replace("<wbr>", "")
    assert "/the_end.npz</summary>" in table.replace("<wbr>", "")
    assert f"<span>{text}</span>" in table.replace("<wbr>", "")
