"""Messages of dora that hold a handle: their frames, or how many were lost."""

from __future__ import annotations

import logging
from typing import Any

import tensorbus
from tensorbus._dora_values import message_view
from tensorbus._place import Place

# Metadata of a message whose value is a handle: "<pool id, or -> <place>"; see Place.
KEY = "tensorbus"

_log = logging.getLogger("tensorbus.dora")


class UnreachableError(tensorbus.NotFoundError):
    """A frame lies where this process cannot read it: on another machine, or behind another
    runtime directory."""

    __module__ = "tensorbus.dora"  # where its users find it


class Inputs:
    """Opens the frames of a node's inputs. Threads: one at a time, as the node."""

    def __init__(self, bus: Any, place: Place) -> None:
        """
        Args:
            bus: to open frames on; stays its owner's.
            place: of this process.
        """
        self._bus = bus
        self._place = place
        #: Per input: messages whose frame was overwritten or gone before this node came to them.
        self.dropped: dict[str, int] = {}
        self._unreported: dict[str, int] = {}

    def translate(self, event: dict[str, Any]) -> bool:
        """Put the frame, its pool's id and the messages lost before it into an INPUT event that has
        a handle; other events stay as they are.

        Returns:
            False when the frame is lost: it was counted, and the event is to be skipped.

        Raises:
            UnreachableError: the frame lies where this process cannot read it.
            ValueError: the value is no handle.
        """
        if event["type"] != "INPUT" or KEY not in event["metadata"]:
            return True
        input_id = event["id"]
        pool_id, _, place = str(event["metadata"].pop(KEY)).partition(" ")
        frame = self._open(event["value"], place, pool_id, input_id)
        if frame is None:
            self.dropped[input_id] = self.dropped.get(input_id, 0) + 1
            self._unreported[input_id] = self._unreported.get(input_id, 0) + 1
            return False
        event["value"] = frame
        event["pool"] = None if pool_id == "-" else pool_id
        event["dropped"] = self._unreported.pop(input_id, 0)
        return True

    def _open(self, value: Any, place: str, pool_id: str, input_id: str) -> Any | None:
        try:
            return tensorbus.open_frame(message_view(value), bus=self._bus)
        except (tensorbus.StaleError, tensorbus.FreedError):
            return None
        except (tensorbus.AgainError, tensorbus.OwnerDiedError, tensorbus.ClosedError) as error:
            _log.warning("input `%s`: a frame that was promised is lost: %s", input_id, error)
            return None
        except tensorbus.NotFoundError as error:
            there = Place.parse(place)
            if there is not None and (why := there.why_apart(self._place)) is not None:
                raise UnreachableError(f"input `{input_id}`: pool `{pool_id}` is {why}") from error
            _log.warning(
                "input `%s`: a frame of pool `%s` is lost: its node has ended", input_id, pool_id
            )
            return None
