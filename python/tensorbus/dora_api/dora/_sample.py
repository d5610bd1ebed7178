"""`send_output_raw`: a buffer to fill in place, sent as a UInt8 array."""

from __future__ import annotations

from typing import Any, Callable


class SampleHandler:
    """A writable buffer that `send()` sends; a context manager that sends at its end.

    Inside `with` an exception means that nothing is sent. Every view of the buffer (memoryview,
    NumPy array) must be gone before it is sent: what a receiver may look at must not change.
    """

    def __init__(self, buffer: bytearray, send: Callable[[bytearray], None]) -> None:
        """`buffer` is the handler's until `send(buffer)` is called, once; then it is the caller's
        again."""
        self._buffer: bytearray | None = buffer
        self._send = send

    def _storage(self) -> bytearray:
        if self._buffer is None:
            raise RuntimeError("Sample has already been sent")
        return self._buffer

    def as_memoryview(self) -> memoryview:
        """uint8[length], writable; release it before `send()`."""
        return memoryview(self._storage())

    def as_buffer(self) -> bytearray:
        """The buffer itself, for `numpy.frombuffer` and the like."""
        return self._storage()

    def send(self) -> None:
        """Send the buffer's content.

        Raises:
            RuntimeError: a view is still there, or it has been sent.
        """
        buffer = self._storage()
        try:
            # A bytearray that anybody looks at cannot change its size. (This moves no bytes.)
            last = buffer[-1:]
            del buffer[-1:]
            buffer += last
        except BufferError:
            raise RuntimeError(
                "Cannot send: 1 buffer view(s) are still open. Release all memoryview / numpy "
                "references before calling send()."
            ) from None
        self._buffer = None
        self._send(buffer)

    def __enter__(self) -> bytearray:
        return self._storage()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self._buffer is not None:
            try:
                self.send()
            except RuntimeError as problem:
                raise RuntimeError(f"Failed to send: {problem}") from None
