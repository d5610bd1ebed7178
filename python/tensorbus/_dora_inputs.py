"""Messages of dora that hold a handle: their frames, or how many were lost."""

from __future__ import annotations

import logging
from typing import Any

import tensorbus
from tensorbus._dora_shortcut import Message
from tensorbus._dora_values import message_array, message_view
from tensorbus._place import Place

# Metadata of a message whose value is a handle: "<pool id, or -> <place>"; see Place. Behind the
# pool's id a numbered message has "#<number>"; see _dora_shortcut. Of one without a handle: the
# number alone.
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
        who, _, place = str(event["metadata"].pop(KEY)).partition(" ")
        pool_id = who.partition("#")[0]
        return not place or self._put_frame(event, message_view(event["value"]), pool_id, place)

    def event_of(self, input_id: str, message: Message) -> dict[str, Any] | None:
        """The event of a message that came by the shortcut, as dora would give it; None: its frame
        is lost.

        Raises:
            ValueError: the value is no handle.
        """
        event: dict[str, Any] = {
            "type": "INPUT",
            "id": input_id,
            "kind": "dora",
            "metadata": message.metadata(),
        }
        if not message.is_handle:
            event["value"] = message_array(message.data)
            return event
        found = self._put_frame(event, message.data, message.pool_id, str(self._place))
        return event if found else None

    def lose(self, input_id: str, count: int = 1) -> None:
        """Count messages that came too late."""
        self.dropped[input_id] = self.dropped.get(input_id, 0) + count
        self._unreported[input_id] = self._unreported.get(input_id, 0) + count

    def _put_frame(self, event: dict[str, Any], handle: Any, pool_id: str, place: str) -> bool:
        input_id = event["id"]
        frame = self._open(handle, place, pool_id, input_id)
        if frame is None:
            self.lose(input_id)
            return False
        event["value"] = frame
        event["pool"] = None if pool_id == "-" else pool_id
        event["dropped"] = self._unreported.pop(input_id, 0)
        return True

    def _open(self, handle: Any, place: str, pool_id: str, input_id: str) -> Any | None:
        try:
            return tensorbus.open_frame(handle, bus=self._bus)
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
