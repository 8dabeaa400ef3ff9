"""System shared memory that clients register by name: POSIX regions under /dev/shm.

Bytes are read and written through the file, not a mapping: a client that shortens its region would otherwise end this
process with SIGBUS, and one that writes meanwhile would change ids after they were checked. Python's own
multiprocessing.shared_memory does not fit: its resource tracker unlinks what it did not create.
"""

import os
import re
import stat
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from service.errors import BadRequest, FieldPath, NotFound, Unsupported
from service.http.validation_errors import validated
from service.protocols.oip.tensors import SHOWN_CHARACTERS, Raw

FOLDER = "/dev/shm"
MAX_REGIONS = 256
LONGEST_NAME = 255  # of a region
KEY = re.compile(r"/?([^/\0.][^/\0]{0,254})")
Size = Annotated[int, Field(ge=0, description="bytes, a whole number from 0")]


class Place(NamedTuple):
    """`byte_size` bytes from `offset` of the registered region of that name."""

    region: str
    offset: int
    byte_size: int


class PlaceParameters(BaseModel):
    """The parameters of a tensor in shared memory."""

    model_config = ConfigDict(strict=True)
    shared_memory_region: Annotated[str, Field(description="the name of a registered region")]
    shared_memory_offset: Size = 0
    shared_memory_byte_size: Size


class Region(NamedTuple):
    """`byte_size` bytes from `offset` of the shared memory object `key`, open as `file`."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: int


class Regions:
    """The regions registered with this process, by name.

    Args:
        enabled: whether the operator lets clients read and write shared memory.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._regions: dict[str, Region] = {}

    def check_enabled(self) -> None:
        """Raise Unsupported unless the operator has switched shared memory on."""
        if not self._enabled:
            raise Unsupported(
                "system shared memory is off",
                remedy="the operator switches it on with INLAY_SHARED_MEMORY=true, for clients that may read and write "
                "all of this machine's shared memory",
            )

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open a region.

        Args:
            key: as shm_open takes it: one name, with or without a leading slash.

        Raises:
            BadRequest: the name is taken, the key is invalid, or the object is missing or smaller than the region.
        """
        self.check_enabled()
        if not name:
            raise BadRequest("the name of a region is empty")
        if len(name) > LONGEST_NAME:
            raise BadRequest(f"the name of a region has {len(name)} characters", allowed=f"allowed: {LONGEST_NAME}")
        if name in self._regions:
            raise BadRequest(f"region {_shown(name)} is registered already", remedy="unregister it first")
        if len(self._regions) >= MAX_REGIONS:
            raise BadRequest(f"{MAX_REGIONS} regions are registered, which is the most", remedy="unregister one")
        if offset < 0 or byte_size < 1:
            raise BadRequest(
                f"region {_shown(name)} has offset {offset} and byte_size {byte_size}",
                allowed="allowed: from 0, from 1",
            )
        file = _open(key)
        region = Region(name, key, offset, byte_size, file)
        try:
            _check_size(region)
        except BaseException:
            os.close(file)
            raise
        self._regions[name] = region

    def unregister(self, name: str | None = None) -> None:
        """Close a region, or all; one that is not registered is no error, as with Triton."""
        self.check_enabled()
        for registered in [name] if name else list(self._regions):
            region = self._regions.pop(registered, None)
            if region:
                os.close(region.file)

    def status(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the regions, or the one of that name; raise NotFound where there is none."""
        self.check_enabled()
        regions = list(self._regions.values()) if not name else [self._region(name)]
        return [{name: getattr(region, name) for name in ("name", "key", "offset", "byte_size")} for region in regions]

    def place(self, parameters: Mapping[str, Any], field: FieldPath) -> Place | None:
        """Return where a tensor's parameters say that it lies; None: not in shared memory.

        Args:
            field: the path of the parameters, for errors.
        """
        if parameters.get("shared_memory_region") is None:
            return None
        self.check_enabled()
        read = validated(PlaceParameters, dict(parameters), field)
        return Place(read.shared_memory_region, read.shared_memory_offset, read.shared_memory_byte_size)

    def read(self, place: Place) -> bytes:
        """Return a copy of the bytes of a place; raise NotFound or BadRequest where there are none."""
        region = self._bounded(place)
        data = os.pread(region.file, place.byte_size, region.offset + place.offset)
        if len(data) < place.byte_size:
            raise BadRequest(f"region {_shown(region.name)} became smaller than it was when it was registered")
        return data

    def write(self, place: Place, data: Raw) -> Place:
        """Write data to the beginning of a place and return the place it takes.

        Raises:
            NotFound: the region is not registered.
            BadRequest: the place is outside the region, or too small.
        """
        region = self._bounded(place)
        if len(data) > place.byte_size:
            name = _shown(region.name)
            raise BadRequest(f"an output of {len(data)} bytes is wanted in {place.byte_size} bytes of region {name}")
        _check_size(region)
        try:
            os.pwrite(region.file, data, region.offset + place.offset)
        except OSError as error:
            raise BadRequest(f"region {_shown(region.name)} cannot be written: {error.strerror}") from None
        return place._replace(byte_size=len(data))

    def _region(self, name: str) -> Region:
        if name not in self._regions:
            known = ", ".join([_shown(registered) for registered in self._regions]) or "none"
            raise NotFound(f"no shared memory region {_shown(name)}", allowed=f"registered: {known}")
        return self._regions[name]

    def _bounded(self, place: Place) -> Region:
        region = self._region(place.region)
        if place.offset + place.byte_size > region.byte_size:
            received = f"{place.byte_size} bytes from {place.offset} are outside region {_shown(region.name)}"
            raise BadRequest(f"{received}, which has {region.byte_size}")
        return region


def place_parameters(place: Place) -> dict[str, Any]:
    """Return the parameters of an output that was written to a place."""
    return {
        "shared_memory_region": place.region,
        "shared_memory_offset": place.offset,
        "shared_memory_byte_size": place.byte_size,
    }


def no_cuda() -> Unsupported:
    """Return the error for CUDA shared memory."""
    remedy = "use system shared memory, or send the bytes"
    return Unsupported("CUDA shared memory is not supported", remedy=remedy)


def _open(key: str) -> int:
    match = KEY.fullmatch(key)
    if not match or len(os.fsencode(match[1])) > 255:
        allowed = 'allowed: "/" and one name without slashes that begins with no dot'
        raise BadRequest(f"is {_shown(key)}", field=("key",), allowed=allowed)
    path = f"{FOLDER}/{match[1]}"
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadRequest(f"shared memory {_shown(key)} cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BadRequest(f"{_shown(key)} is no shared memory object")
    return file


def _check_size(region: Region) -> None:
    size = os.fstat(region.file).st_size
    if region.offset + region.byte_size > size:
        key = _shown(region.key)
        received = f"region {_shown(region.name)} is {region.byte_size} bytes from {region.offset}"
        raise BadRequest(received, allowed=f"{key} has {size}")


def _shown(name: str) -> str:
    return repr(name[:SHOWN_CHARACTERS])
