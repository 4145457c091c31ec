"""The rules of a session at the aggregator: what each event does in each phase.

docs/protocol.md has them in words, made by `python -m fedboost.protocol.rules_reference`.
"""

from collections.abc import Callable
from typing import NamedTuple

from fedboost.protocol import attendance, closing, joining, relaying, turn
from fedboost.protocol.events import Connected, Disconnected, Outbox, Phase, Tick, Violation
from fedboost.protocol.messages import Attest, Join, Leave, OpenShare, Relay, Report


class Rule(NamedTuple):
    """The effect of an event in a phase: the handler, whose docstring says it, and the phases it may lead to
    besides `failed`."""

    handler: Callable[..., Outbox]
    leads_to: tuple[Phase, ...]


_TURN: tuple[Phase, ...] = ("joining", "asking", "opening", "closing", "done")
"""What a turn may lead to once its sum is opened."""

RULES: dict[tuple[Phase, type], Rule] = {
    ("joining", Connected): Rule(joining.invite, ("joining",)),
    ("joining", Join): Rule(joining.join, ("joining", "asking")),
    ("joining", Disconnected): Rule(joining.lose_joining, ("joining",)),
    ("joining", Leave): Rule(attendance.leave, ("joining",)),
    ("joining", Violation): Rule(attendance.expel, ("joining",)),
    ("joining", Tick): Rule(joining.tick_joining, ("joining", "done")),
    ("joining", Report): Rule(turn.stray_report, ("joining",)),
    ("joining", Relay): Rule(relaying.stray_relay, ("joining",)),
    ("joining", OpenShare): Rule(turn.stray_assist, ("joining",)),
    ("joining", Attest): Rule(closing.stray_attest, ("joining",)),
    ("asking", Connected): Rule(joining.note_connected, ("asking",)),
    ("asking", Report): Rule(turn.report, _TURN),
    ("asking", Relay): Rule(relaying.pass_on, ("asking",)),
    ("asking", Disconnected): Rule(turn.lose_in_turn, _TURN),
    ("asking", Leave): Rule(attendance.leave, _TURN),
    ("asking", Violation): Rule(attendance.expel, _TURN),
    ("asking", Tick): Rule(turn.tick, ("asking", "joining")),
    ("asking", Join): Rule(joining.join_again, ("asking",)),
    ("asking", OpenShare): Rule(turn.stray_assist, ("asking",)),
    ("asking", Attest): Rule(closing.stray_attest, ("asking",)),
    ("opening", Connected): Rule(joining.note_connected, ("opening",)),
    ("opening", OpenShare): Rule(turn.assist, _TURN),
    ("opening", Disconnected): Rule(turn.lose_in_turn, _TURN),
    ("opening", Leave): Rule(attendance.leave, _TURN),
    ("opening", Violation): Rule(attendance.expel, _TURN),
    ("opening", Tick): Rule(turn.tick, ("opening", "joining")),
    ("opening", Join): Rule(joining.join_again, ("opening",)),
    ("opening", Relay): Rule(relaying.stray_relay, ("opening",)),
    ("opening", Report): Rule(turn.stray_report, ("opening",)),
    ("opening", Attest): Rule(closing.stray_attest, ("opening",)),
    ("closing", Connected): Rule(joining.note_connected, ("closing",)),
    ("closing", Attest): Rule(closing.attest, ("closing", "joining", "done")),
    ("closing", Disconnected): Rule(closing.lose_closing, ("closing", "joining", "done")),
    ("closing", Leave): Rule(closing.leave_closing, ("closing", "joining", "done")),
    ("closing", Violation): Rule(closing.leave_closing, ("closing", "joining", "done")),
    ("closing", Tick): Rule(turn.tick, ("closing", "joining")),
    ("closing", Join): Rule(joining.join_again, ("closing",)),
    ("closing", Report): Rule(turn.stray_report, ("closing",)),
    ("closing", Relay): Rule(relaying.stray_relay, ("closing",)),
    ("closing", OpenShare): Rule(turn.stray_assist, ("closing",)),
}
"""The session: every phase and event. All may fail; `done` and `failed` answer nothing."""
