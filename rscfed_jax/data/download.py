"""Published files, fetched with pooch: resumed, compared with their checksums, never incomplete."""

import contextlib
import fcntl
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from rscfed_jax.config import Config, SettingError

PIECE = 2**16  # bytes that are written at once; a part of one is lost when a transfer breaks off
TIMEOUT = (10.0, 30.0)  # seconds to wait for a connection, and for the next bytes
ATTEMPTS = 3  # in a row that bring next to nothing
WORTH_IT = 2**20  # bytes of an attempt that does not count as one of those
PAUSE = 1.0  # seconds before the second attempt; doubled for each one after it
SECONDS_BETWEEN_LINES = 10.0  # where no bar is shown


class Published(NamedTuple):
    """A file as its authors publish it."""

    url: str
    md5: str
    size: int  # bytes

    @property
    def name(self) -> str:
        """The name under which it is stored."""
        return self.url.rpartition("/")[2]


def may_download(config: Config) -> bool:
    """Whether files that are not found are to be fetched from their authors."""
    return config.download and config.download_from == "official"


def fetch(config: Config, files: Sequence[Published], folder: Path) -> None:
    """Puts those of the files into the folder that are not there yet; one that fails leaves nothing behind."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        while missing := [file for file in files if not (folder / file.name).exists()]:
            _fetch(config, missing, folder)
    except BaseException:
        for place in made:
            with contextlib.suppress(OSError):  # it holds something by now
                place.rmdir()
        raise


def _fetch(config: Config, missing: Sequence[Published], folder: Path) -> None:
    """Fetches the first of the missing files."""
    import pooch
    import requests

    file = missing[0]

    def refuse(why: str) -> SettingError:
        urls = " and ".join(each.url for each in missing)
        reason = f"{file.name} cannot be downloaded: {why}; put {urls} into {folder} (--data-dir) by hand"
        return SettingError("dataset", config.dataset, reason)

    transfer = _Transfer(file)
    try:
        with _workplace(file, folder) as place:
            if (folder / file.name).exists():  # another process was first
                return
            with transfer, _silent(pooch.get_logger()):
                pooch.retrieve(file.url, f"md5:{file.md5}", file.name, place, downloader=transfer)
            (place / file.name).replace(folder / file.name)
    except requests.HTTPError as error:
        raise refuse(f"the server answers {str(error).partition(' for url')[0]}") from None
    except requests.RequestException as error:
        if isinstance(error, requests.ConnectionError) and not transfer.done:
            raise refuse(f"no connection to the server ({type(error).__name__})") from None
        raise refuse(f"the connection was lost after {transfer.done / 1e6:.1f} of {file.size / 1e6:.1f} MB") from None
    except ValueError:  # pooch's, of a checksum that differs
        raise refuse(f"the server sent a different file; its md5 is not {file.md5}") from None
    except OSError as error:
        reason = f"{file.name} cannot be written there: {error.strerror or error}"
        raise SettingError("data_dir", folder, reason) from None


class _Transfer:
    """A downloader for pooch: shows its progress, and continues a broken transfer where it stopped."""

    def __init__(self, file: Published):
        self.file = file
        self.done = 0  # bytes
        self.last_line = time.perf_counter()
        console = Console(stderr=True)
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self.bar = Progress(TextColumn(file.name), *columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> None:
        if not self.bar.disable:  # or it would print an empty line before rich 15
            self.bar.start()
        self.task = self.bar.add_task("", total=self.file.size)

    def __exit__(self, *_: object) -> None:
        if not self.bar.disable:
            self.bar.stop()

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        """Transfers the file, with a new attempt after each failure that may pass."""
        import requests

        path = Path(output_file)
        path.unlink()  # made for its owner alone; made anew, it gets the usual permissions
        self._say(f"downloading {url}, {self.file.size / 1e6:.0f} MB")
        in_vain = 0
        while True:
            before = self.done
            try:
                return self._attempt(url, path)
            except requests.HTTPError as error:
                if error.response is not None and error.response.status_code < 500:
                    raise
                failure: requests.RequestException = error
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
                failure = error
            in_vain = 0 if self.done - before >= WORTH_IT else in_vain + 1
            if in_vain == ATTEMPTS:
                raise failure
            self._say(f"{self.file.name} failed after {self.done / 1e6:.1f} MB; trying again")
            time.sleep(PAUSE * 2 ** max(in_vain - 1, 0))

    def _attempt(self, url: str, path: Path) -> None:
        import requests

        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={self.done}-"} if self.done else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            response.raise_for_status()
            rest = response.headers.get("Content-Range", "").startswith(f"bytes {self.done}-")
            self.done = self.done if rest else 0
            with path.open("ab" if rest else "wb") as target:
                for piece in response.iter_content(PIECE):
                    target.write(piece)
                    self.done += len(piece)
                    self._show()
                target.flush()
                os.fsync(target.fileno())  # or a power loss could leave the name with nothing in it

    def _show(self) -> None:
        self.bar.update(self.task, completed=self.done)
        if time.perf_counter() - self.last_line > SECONDS_BETWEEN_LINES:
            self._say(f"{self.file.name}: {self.done / 1e6:.1f} of {self.file.size / 1e6:.1f} MB")

    def _say(self, text: str) -> None:
        """A line for a reader who sees no bar."""
        if self.bar.disable:
            self.last_line = time.perf_counter()
            _say(text)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the reader may have left
        print(text, file=sys.stderr)


@contextlib.contextmanager
def _workplace(file: Published, folder: Path) -> Iterator[Path]:
    """A directory for an unfinished download, of one process at a time; a killed process may have left it behind."""
    place = folder / f".{file.name}.part"
    # The process that had it before removes it, perhaps between two of these steps.
    while (handle := _opened(place)) is None or not _locked(handle, place, file.name):
        pass
    try:
        for left in place.iterdir():
            left.unlink()
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


def _opened(place: Path) -> int | None:
    """A handle of the directory, which is made if need be; None if it is removed just now."""
    with contextlib.suppress(FileExistsError):
        place.mkdir(parents=True)
    try:
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        if not place.parent.is_dir():
            raise
        return None


def _locked(handle: int, place: Path, name: str) -> bool:
    """Locks a directory until its handle is closed or its process ends; closes the handle if it was removed by then."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"another process is downloading {name}; waiting for it")
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        pass  # a file system without locks: at worst a file is fetched twice
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(place), os.fstat(handle)):
            return True
    os.close(handle)
    return False


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
