"""Images that strangers send, decoded in processes of their own: a bomb ends its process, nothing else."""

from __future__ import annotations

import queue
import weakref

import msgspec

from corepipe.errors import UserError
from corepipe.models.vision.preprocessing import ImageSize, Preprocessing
from corepipe.sandbox import ANSWER_SECONDS, MAX_FRAME, START_SECONDS, EndedError, SandboxProcess

MODULE = "corepipe.models.vision.image_sandbox"
CPU_SECONDS = 5.0
"""For one image; the largest that are taken need less than one."""
MAX_MEMORY = 1 << 30
"""Bytes of address space of a process."""
PROCESSES = 2


class ImageSetting(msgspec.Struct, frozen=True):
    """What all images of a model have in common; `wanted`: the size of what it reads."""

    steps: Preprocessing
    wanted: ImageSize


class DecodedImage(msgspec.Struct, frozen=True):
    """[channels, height, width] as fp32 in little-endian order, or what was wrong.

    stored: pixels of the image as it was decoded.
    """

    pixels: bytes = b""
    stored: int = 0
    error: str = ""


class ImageReader:
    """Decodes and preprocesses images for a model.  Any thread may ask; each has its turn.

    Its processes start when they are first needed, and again after one was ended.
    """

    def __init__(
        self, setting: ImageSetting, processes: int = PROCESSES, cpu_seconds: float = CPU_SECONDS
    ) -> None:
        self._setting = msgspec.msgpack.encode(setting)
        self._cpu_seconds = cpu_seconds
        self._free: queue.LifoQueue[SandboxProcess | None] = queue.LifoQueue()
        self._started: weakref.WeakSet[SandboxProcess] = weakref.WeakSet()
        for _ in range(processes):
            self._free.put(None)

    def read(self, data: bytes) -> DecodedImage:
        """What a model reads of an image's file.

        Raises UserError, as the end of a sentence whose subject is the image, for what is no image, or takes
        too much to decode.
        """
        if len(data) > MAX_FRAME:
            raise UserError(f"it is larger than {MAX_FRAME} bytes")
        process = self._free.get()
        try:
            if process is None:
                process = self._start()
            answer = process.ask(data, DecodedImage, ANSWER_SECONDS)
        except EndedError as error:
            process = None
            raise UserError(f"it cannot be decoded: it {error}") from error
        finally:
            self._free.put(process)
        if answer.error:
            raise UserError(answer.error)
        return answer

    def close(self) -> None:
        """Ends the processes."""
        for process in list(self._started):
            process.close()

    def _start(self) -> SandboxProcess:
        process = SandboxProcess(MODULE, self._cpu_seconds)
        self._started.add(process)
        process.ask(self._setting, DecodedImage, START_SECONDS)
        return process
