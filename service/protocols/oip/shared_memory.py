"""System shared memory that a client lends by name: POSIX regions under /dev/shm. Maps nothing and frees nothing.

Bytes are read and written through the file, not a mapping: a client that shortens its region would otherwise end this
process with SIGBUS, and one that writes meanwhile would change ids after they were checked. Python's own
multiprocessing.shared_memory is no good here: its resource tracker unlinks what it did not make.
"""

import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from service.errors import BadRequest, NotFound, Unsupported
from service.protocols.oip.datatypes import Raw
from service.settings import Settings

FOLDER = "/dev/shm"
MOST_REGIONS = 256
KEY = re.compile(r"/?([^/\0.][^/\0]{0,254})")


class Place(NamedTuple):
    """`byte_size` bytes from `offset` of the registered region of that name."""

    region: str
    offset: int
    byte_size: int


class Region(NamedTuple):
    """`byte_size` bytes from `offset` of the shared memory object `key`, open."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: int


class Regions:
    """The regions registered with this process, by name."""

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open a region.

        key      as shm_open takes it: one name, with or without a leading slash
        raises   BadRequest: a name taken, a key that is none, a region that is not there or smaller than it says
        """
        if not name or name in self._regions:
            raise BadRequest(f"region {name!r} is registered already: unregister it first" if name else "region is ''")
        if len(self._regions) >= MOST_REGIONS:
            raise BadRequest(f"{MOST_REGIONS} regions are registered, which is the most: unregister one")
        if offset < 0 or byte_size < 1:
            raise BadRequest(f"region {name!r} has offset {offset} and byte_size {byte_size}; allowed: from 0, from 1")
        file = _open(key)
        region = Region(name, key, offset, byte_size, file)
        try:
            _check_size(region)
        except BaseException:
            os.close(file)
            raise
        self._regions[name] = region

    def unregister(self, name: str | None = None) -> None:
        """Let go of a region, or of all; one that is not registered is none already."""
        for each in [name] if name else list(self._regions):
            region = self._regions.pop(each, None)
            if region:
                os.close(region.file)

    def status(self, name: str | None = None) -> list[Region]:
        """The regions, or the one of that name.

        raises   NotFound
        """
        return list(self._regions.values()) if not name else [self._region(name)]

    def read(self, place: Place) -> bytes:
        """A copy of the bytes of a place.

        raises   NotFound, or BadRequest for bytes outside the region
        """
        region = self._bounded(place)
        data = os.pread(region.file, place.byte_size, region.offset + place.offset)
        if len(data) < place.byte_size:
            raise BadRequest(f"region {region.name!r} became smaller than it was when it was registered")
        return data

    def write(self, place: Place, data: Raw) -> None:
        """Put `data` at the beginning of a place.

        raises   NotFound, or BadRequest for bytes outside the region or more data than has room
        """
        region = self._bounded(place)
        if len(data) > place.byte_size:
            raise BadRequest(
                f"an output of {len(data)} bytes is wanted in {place.byte_size} bytes of region {region.name!r}"
            )
        _check_size(region)
        try:
            os.pwrite(region.file, data, region.offset + place.offset)
        except OSError as error:
            raise BadRequest(f"region {region.name!r} cannot be written: {error.strerror}") from None

    def _region(self, name: str) -> Region:
        if name not in self._regions:
            known = ", ".join(map(repr, self._regions)) or "none"
            raise NotFound(f"no shared memory region {name[:80]!r}; registered: {known}")
        return self._regions[name]

    def _bounded(self, place: Place) -> Region:
        region = self._region(place.region)
        if place.offset + place.byte_size > region.byte_size:
            raise BadRequest(
                f"{place.byte_size} bytes from {place.offset} are outside region {region.name!r}, "
                f"which has {region.byte_size}"
            )
        return region


def place_of(tensor: str, parameters: Mapping[str, Any], settings: Settings) -> Place | None:
    """Where a tensor's parameters say that it lies; None: not in shared memory.

    raises   Unsupported where it is switched off; BadRequest naming the tensor
    """
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    check_on(settings)
    offset, byte_size = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
    if type(region) is not str or type(offset) is not int or type(byte_size) is not int or min(offset, byte_size) < 0:
        raise BadRequest(
            f"tensor {tensor!r} is at {offset!r}, {byte_size!r} bytes long, in region {region!r}; allowed: "
            "shared_memory_region a name, shared_memory_offset and shared_memory_byte_size whole numbers from 0"
        )
    return Place(region, offset, byte_size)


def check_on(settings: Settings) -> None:
    """Raise Unsupported unless the operator has switched shared memory on."""
    if not settings.shared_memory:
        raise Unsupported(
            "system shared memory is off: the operator switches it on with INLAY_SHARED_MEMORY=true, "
            "for clients that may read and write all of this machine's shared memory"
        )


def no_cuda() -> Unsupported:
    """What a client of CUDA shared memory is told."""
    return Unsupported("CUDA shared memory is not supported: use system shared memory, or send the bytes")


def _open(key: str) -> int:
    match = KEY.fullmatch(key)
    if not match or len(os.fsencode(match[1])) > 255:
        raise BadRequest(f'key is {key[:80]!r}; allowed: "/" and one name without slashes that begins with no dot')
    path = f"{FOLDER}/{match[1]}"
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadRequest(f"shared memory {key[:80]!r} cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BadRequest(f"{key[:80]!r} is no shared memory object")
    return file


def _check_size(region: Region) -> None:
    size = os.fstat(region.file).st_size
    if region.offset + region.byte_size > size:
        raise BadRequest(
            f"region {region.name!r} is {region.byte_size} bytes from {region.offset}; {region.key!r} has {size}"
        )
