"""From directories of runs to a file: what `rscfed-jax report` does."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rscfed_jax.config import SettingError
from rscfed_jax.config.files import write_whole
from rscfed_jax.report.collect import collect
from rscfed_jax.report.page import as_html
from rscfed_jax.report.plain import report_as_csv, report_as_markdown
from rscfed_jax.report.seeds import Report, build_report


def _as_png(report: Report) -> bytes:
    from rscfed_jax.report.poster import as_png  # Matplotlib takes a moment

    return as_png(report)


FORMATS: dict[str, Callable[[Report], str | bytes]] = {
    "html": as_html,
    "md": report_as_markdown,
    "csv": report_as_csv,
    "png": _as_png,
}


def write_report(
    directories: str | Path | Sequence[str | Path], *, out: str | Path | None = None, format: str | None = None
) -> tuple[Path, Report]:
    """Writes a report of the runs in the directories or below them, and returns the file and what it shows.

    `format` defaults to the ending of `out`, or to HTML without both. `out` defaults to report.FORMAT in the directory,
    or in the working directory if there are several.
    """
    if isinstance(directories, str | Path):
        directories = [directories]
    if format is None:
        format = "html" if out is None else Path(out).suffix.removeprefix(".")
        if format not in FORMATS:
            raise SettingError("out", out, f"must end in {', '.join('.' + name for name in FORMATS)}")
    if format not in FORMATS:
        raise SettingError("format", format, f"must be one of {', '.join(FORMATS)}")
    if out is None:
        file = Path(directories[0] if len(directories) == 1 else "") / f"report.{format}"
    else:
        file = Path(out)
        # So that a slip of the hand cannot replace the metrics of a run.
        if file.suffix != f".{format}":
            raise SettingError("out", out, f"must end in .{format}")
    report = build_report(collect(directories))
    content = FORMATS[format](report)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
    except OSError as error:
        raise SettingError("out", file, f"cannot be written: {error.strerror}") from None
    return file, report
