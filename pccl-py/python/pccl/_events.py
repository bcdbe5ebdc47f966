"""Events: what happens at a peer, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        kind: which sort of event, in lower case with underscores: `group`, `verdict`,
            `first_segment_sent`, `completed`, `vote_failed`, `lost`, `evicted`, `waiting`, ...
        text: one sentence for people.
        fields: what it is about: `member`, `tag`, `epoch`, `outcome`, ..., by kind.
    """

    kind: str
    text: str
    fields: dict[str, int | str]

    def __str__(self) -> str:
        return self.text
