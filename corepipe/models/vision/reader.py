"""Decodes clients' images in processes of their own: a decompression bomb ends its process, nothing else."""

from __future__ import annotations

import queue
import weakref

import msgspec

from corepipe.errors import UserError
from corepipe.models.vision.preprocessing import ImageSize, Preprocessing
from corepipe.sandbox import ANSWER_SECONDS, MAX_FRAME, START_SECONDS, EndedError, SandboxProcess

MODULE = "corepipe.models.vision.image_sandbox"
CPU_SECONDS = 5.0
"""The processor time of one image; the largest accepted ones need less than a second."""
MAX_MEMORY = 1 << 30
"""Bytes of address space of a process."""
PROCESSES = 2


class ImageSetting(msgspec.Struct, frozen=True):
    """The setting of all images of a model; `wanted`: the size that it reads."""

    steps: Preprocessing
    wanted: ImageSize


class DecodedImage(msgspec.Struct, frozen=True):
    """The pixels [channels, height, width] as fp32 in little-endian order, or the error.

    stored: pixels of the image as it was decoded.
    """

    pixels: bytes = b""
    stored: int = 0
    error: str = ""


class ImageReader:
    """Decodes and preprocesses images for a model. Any thread may call it; they take turns.

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
        """Returns the model's input for an image's file.

        Raises UserError, as the end of a sentence whose subject is the image, for files that are not images,
        or take too much to decode.
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
