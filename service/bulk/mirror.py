"""Outputs at an address that fsspec opens: written here, and copied there part by part.

An object store shows a file whole or not at all, so a run that ended anywhere goes on there. Nothing locks it: two runs
of one command write the same bytes, and another command is refused by the plan.
"""

from pathlib import Path

from service.bulk import outputs
from service.bulk.remote import PACKAGES, Remote, explained, filesystem


class Mirror:
    """The output of a run, written here and copied to its address.

    Args:
        output: the address.
        folder: an empty folder here.

    Attributes:
        output: what to write here.
    """

    def __init__(self, output: Remote, folder: Path) -> None:
        self._there, self.output = output, folder / output.name
        with explained(output):
            self._files, path = filesystem(output)
            self._root = path.rpartition("/")[0]
            if str(output).partition(":")[0] not in PACKAGES:  # these have no folders, and would make a missing bucket
                self._files.makedirs(f"{self._root}/{outputs.folder(self.output).name}", exist_ok=True)
            if outputs.is_file(output) and self._files.exists(path):
                self.output.touch()
            self._pull(outputs.folder(self.output))

    def _pull(self, where: Path) -> None:
        """Copy what an interrupted run left; parts of a folder are noted alone, since nothing reads them again."""
        path = f"{self._root}/{where.name}"
        for name in self._files.ls(path, detail=False) if self._files.isdir(path) else ():
            where.mkdir(exist_ok=True)
            target = where / name.rpartition("/")[2]
            if target.name.startswith("_") or where != self.output:
                self._files.get_file(name, str(target))
            else:
                target.touch()

    def push(self, path: Path) -> None:
        """Copy a file that is complete; a plan only where there is none yet."""
        target = f"{self._root}/{path.relative_to(self.output.parent).as_posix()}"
        with explained(self._there):
            if path.name == outputs.PLAN_FILE:
                self._files.pipe_file(target, path.read_bytes(), mode="create")
            else:
                self._files.put_file(str(path), target)
        if path.parent == self.output and not path.name.startswith("_"):  # keeps the disk free
            path.write_bytes(b"")

    def finish(self) -> None:
        """Remove the parts, of which one file was made."""
        path = f"{self._root}/{outputs.folder(self.output).name}"
        with explained(self._there):
            if outputs.is_file(self.output) and self._files.isdir(path):
                self._files.rm(path, recursive=True)
