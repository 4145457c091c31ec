from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Wish(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FOLLOW: _ClassVar[Wish]
    RETURN: _ClassVar[Wish]
    STOP: _ClassVar[Wish]
    FINISH: _ClassVar[Wish]

class SessionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAITING: _ClassVar[SessionState]
    RUNNING: _ClassVar[SessionState]
    FINISHED: _ClassVar[SessionState]
FOLLOW: Wish
RETURN: Wish
STOP: Wish
FINISH: Wish
WAITING: SessionState
RUNNING: SessionState
FINISHED: SessionState

class FromParty(_message.Message):
    __slots__ = ("join", "report", "leave", "assist", "attest", "relay")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    ASSIST_FIELD_NUMBER: _ClassVar[int]
    ATTEST_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    join: Join
    report: Report
    leave: Leave
    assist: OpenShare
    attest: Attest
    relay: Relay
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., assist: _Optional[_Union[OpenShare, _Mapping]] = ..., attest: _Optional[_Union[Attest, _Mapping]] = ..., relay: _Optional[_Union[Relay, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("session", "digest", "greeting", "attempt", "certificate", "known")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    GREETING_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    session: str
    digest: str
    greeting: bytes
    attempt: int
    certificate: bytes
    known: bytes
    def __init__(self, session: _Optional[str] = ..., digest: _Optional[str] = ..., greeting: _Optional[bytes] = ..., attempt: _Optional[int] = ..., certificate: _Optional[bytes] = ..., known: _Optional[bytes] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("turn", "part", "cells", "note", "attempt", "ctx")
    TURN_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CTX_FIELD_NUMBER: _ClassVar[int]
    turn: int
    part: int
    cells: bytes
    note: bytes
    attempt: int
    ctx: bytes
    def __init__(self, turn: _Optional[int] = ..., part: _Optional[int] = ..., cells: _Optional[bytes] = ..., note: _Optional[bytes] = ..., attempt: _Optional[int] = ..., ctx: _Optional[bytes] = ...) -> None: ...

class Relay(_message.Message):
    __slots__ = ("turn", "attempt", "number", "content", "last", "to", "sender")
    TURN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    turn: int
    attempt: int
    number: int
    content: bytes
    last: bool
    to: _containers.RepeatedScalarFieldContainer[str]
    sender: str
    def __init__(self, turn: _Optional[int] = ..., attempt: _Optional[int] = ..., number: _Optional[int] = ..., content: _Optional[bytes] = ..., last: _Optional[bool] = ..., to: _Optional[_Iterable[str]] = ..., sender: _Optional[str] = ...) -> None: ...

class OpenShare(_message.Message):
    __slots__ = ("turn", "answer", "attempt")
    TURN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    turn: int
    answer: bytes
    attempt: int
    def __init__(self, turn: _Optional[int] = ..., answer: _Optional[bytes] = ..., attempt: _Optional[int] = ...) -> None: ...

class Attest(_message.Message):
    __slots__ = ("turns", "transcript", "certificate", "signature", "attempt", "structure", "thresholds", "part")
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    turns: int
    transcript: bytes
    certificate: bytes
    signature: bytes
    attempt: int
    structure: bytes
    thresholds: bytes
    part: bytes
    def __init__(self, turns: _Optional[int] = ..., transcript: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., attempt: _Optional[int] = ..., structure: _Optional[bytes] = ..., thresholds: _Optional[bytes] = ..., part: _Optional[bytes] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason", "session")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    reason: str
    session: str
    def __init__(self, reason: _Optional[str] = ..., session: _Optional[str] = ...) -> None: ...

class ToParty(_message.Message):
    __slots__ = ("admit", "ask", "bye", "meet", "open", "close", "relay")
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    MEET_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    admit: Offer
    ask: Ask
    bye: SessionEnded
    meet: Introduce
    open: OpenRequest
    close: Close
    relay: Relay
    def __init__(self, admit: _Optional[_Union[Offer, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., bye: _Optional[_Union[SessionEnded, _Mapping]] = ..., meet: _Optional[_Union[Introduce, _Mapping]] = ..., open: _Optional[_Union[OpenRequest, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., relay: _Optional[_Union[Relay, _Mapping]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("session", "terms", "attempt", "request")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    session: str
    terms: str
    attempt: int
    request: Request
    def __init__(self, session: _Optional[str] = ..., terms: _Optional[str] = ..., attempt: _Optional[int] = ..., request: _Optional[_Union[Request, _Mapping]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("nonce", "time", "certificate", "signature")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    time: int
    certificate: bytes
    signature: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., time: _Optional[int] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("turn", "attempt", "roster", "rows", "quantiles", "start", "histograms", "end_round", "votes", "residuals", "ranges", "sums", "id_count", "align", "places", "bins", "reach", "summary", "evaluation", "bin_counts", "level_sums", "magnitudes", "times", "levels", "then")
    TURN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    QUANTILES_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    END_ROUND_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    RESIDUALS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    ID_COUNT_FIELD_NUMBER: _ClassVar[int]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    BIN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_SUMS_FIELD_NUMBER: _ClassVar[int]
    MAGNITUDES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    turn: int
    attempt: int
    roster: bytes
    rows: RowsQuery
    quantiles: QuantileQuery
    start: StartQuery
    histograms: HistogramQuery
    end_round: EndRoundQuery
    votes: VoteQuery
    residuals: ResidualQuery
    ranges: RangeQuery
    sums: SumsQuery
    id_count: IdCountQuery
    align: AlignQuery
    places: PlacesQuery
    bins: BinsQuery
    reach: ReachQuery
    summary: SummaryQuery
    evaluation: EvaluationQuery
    bin_counts: BinCountsQuery
    level_sums: LevelSumsQuery
    magnitudes: MagnitudesQuery
    times: TimesQuery
    levels: LevelsQuery
    then: _containers.RepeatedCompositeFieldContainer[Ask]
    def __init__(self, turn: _Optional[int] = ..., attempt: _Optional[int] = ..., roster: _Optional[bytes] = ..., rows: _Optional[_Union[RowsQuery, _Mapping]] = ..., quantiles: _Optional[_Union[QuantileQuery, _Mapping]] = ..., start: _Optional[_Union[StartQuery, _Mapping]] = ..., histograms: _Optional[_Union[HistogramQuery, _Mapping]] = ..., end_round: _Optional[_Union[EndRoundQuery, _Mapping]] = ..., votes: _Optional[_Union[VoteQuery, _Mapping]] = ..., residuals: _Optional[_Union[ResidualQuery, _Mapping]] = ..., ranges: _Optional[_Union[RangeQuery, _Mapping]] = ..., sums: _Optional[_Union[SumsQuery, _Mapping]] = ..., id_count: _Optional[_Union[IdCountQuery, _Mapping]] = ..., align: _Optional[_Union[AlignQuery, _Mapping]] = ..., places: _Optional[_Union[PlacesQuery, _Mapping]] = ..., bins: _Optional[_Union[BinsQuery, _Mapping]] = ..., reach: _Optional[_Union[ReachQuery, _Mapping]] = ..., summary: _Optional[_Union[SummaryQuery, _Mapping]] = ..., evaluation: _Optional[_Union[EvaluationQuery, _Mapping]] = ..., bin_counts: _Optional[_Union[BinCountsQuery, _Mapping]] = ..., level_sums: _Optional[_Union[LevelSumsQuery, _Mapping]] = ..., magnitudes: _Optional[_Union[MagnitudesQuery, _Mapping]] = ..., times: _Optional[_Union[TimesQuery, _Mapping]] = ..., levels: _Optional[_Union[LevelsQuery, _Mapping]] = ..., then: _Optional[_Iterable[_Union[Ask, _Mapping]]] = ...) -> None: ...

class Introduce(_message.Message):
    __slots__ = ("greetings", "certificates", "grids", "start", "rounds", "splits", "levels", "gradient", "hessian", "threshold", "at_risk", "residual", "places")
    GREETINGS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    GRIDS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    HESSIAN_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    AT_RISK_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    greetings: _containers.RepeatedScalarFieldContainer[bytes]
    certificates: _containers.RepeatedScalarFieldContainer[bytes]
    grids: int
    start: StartQuery
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    splits: Splits
    levels: int
    gradient: Scale
    hessian: Scale
    threshold: float
    at_risk: _containers.RepeatedScalarFieldContainer[float]
    residual: ResidualQuery
    places: PlacesQuery
    def __init__(self, greetings: _Optional[_Iterable[bytes]] = ..., certificates: _Optional[_Iterable[bytes]] = ..., grids: _Optional[int] = ..., start: _Optional[_Union[StartQuery, _Mapping]] = ..., rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ..., splits: _Optional[_Union[Splits, _Mapping]] = ..., levels: _Optional[int] = ..., gradient: _Optional[_Union[Scale, _Mapping]] = ..., hessian: _Optional[_Union[Scale, _Mapping]] = ..., threshold: _Optional[float] = ..., at_risk: _Optional[_Iterable[float]] = ..., residual: _Optional[_Union[ResidualQuery, _Mapping]] = ..., places: _Optional[_Union[PlacesQuery, _Mapping]] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("splits", "values")
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    splits: Splits
    values: LeafValues
    def __init__(self, splits: _Optional[_Union[Splits, _Mapping]] = ..., values: _Optional[_Union[LeafValues, _Mapping]] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("turn", "request", "attempt")
    TURN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    turn: int
    request: bytes
    attempt: int
    def __init__(self, turn: _Optional[int] = ..., request: _Optional[bytes] = ..., attempt: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("attempt", "rounds", "numbers")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    rounds: int
    numbers: bytes
    def __init__(self, attempt: _Optional[int] = ..., rounds: _Optional[int] = ..., numbers: _Optional[bytes] = ...) -> None: ...

class SessionEnded(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class FromAdder(_message.Message):
    __slots__ = ("here", "gone", "passed", "sum", "held")
    HERE_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    here: Here
    gone: Gone
    passed: From
    sum: RegionSum
    held: Held
    def __init__(self, here: _Optional[_Union[Here, _Mapping]] = ..., gone: _Optional[_Union[Gone, _Mapping]] = ..., passed: _Optional[_Union[From, _Mapping]] = ..., sum: _Optional[_Union[RegionSum, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ...) -> None: ...

class Here(_message.Message):
    __slots__ = ("number", "party", "software")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    number: int
    party: str
    software: str
    def __init__(self, number: _Optional[int] = ..., party: _Optional[str] = ..., software: _Optional[str] = ...) -> None: ...

class Gone(_message.Message):
    __slots__ = ("number", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    reason: str
    def __init__(self, number: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class From(_message.Message):
    __slots__ = ("number", "data", "advises")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ADVISES_FIELD_NUMBER: _ClassVar[int]
    number: int
    data: bytes
    advises: bool
    def __init__(self, number: _Optional[int] = ..., data: _Optional[bytes] = ..., advises: _Optional[bool] = ...) -> None: ...

class RegionSum(_message.Message):
    __slots__ = ("turn", "attempt", "part", "cells", "ctx", "sizes", "last")
    TURN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    CTX_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    turn: int
    attempt: int
    part: int
    cells: bytes
    ctx: bytes
    sizes: _containers.RepeatedScalarFieldContainer[int]
    last: int
    def __init__(self, turn: _Optional[int] = ..., attempt: _Optional[int] = ..., part: _Optional[int] = ..., cells: _Optional[bytes] = ..., ctx: _Optional[bytes] = ..., sizes: _Optional[_Iterable[int]] = ..., last: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("turn", "attempt", "numbers")
    TURN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    turn: int
    attempt: int
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, turn: _Optional[int] = ..., attempt: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class ToAdder(_message.Message):
    __slots__ = ("to", "cut")
    TO_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    to: To
    cut: Cut
    def __init__(self, to: _Optional[_Union[To, _Mapping]] = ..., cut: _Optional[_Union[Cut, _Mapping]] = ...) -> None: ...

class To(_message.Message):
    __slots__ = ("numbers", "data", "relays", "advises", "adds")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    ADVISES_FIELD_NUMBER: _ClassVar[int]
    ADDS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    relays: bool
    advises: bool
    adds: Addition
    def __init__(self, numbers: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., relays: _Optional[bool] = ..., advises: _Optional[bool] = ..., adds: _Optional[_Union[Addition, _Mapping]] = ...) -> None: ...

class Addition(_message.Message):
    __slots__ = ("turn", "attempt", "ctx", "segments", "checked")
    TURN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CTX_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    turn: int
    attempt: int
    ctx: bytes
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    checked: bool
    def __init__(self, turn: _Optional[int] = ..., attempt: _Optional[int] = ..., ctx: _Optional[bytes] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., checked: _Optional[bool] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("cells", "bits")
    CELLS_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    cells: int
    bits: int
    def __init__(self, cells: _Optional[int] = ..., bits: _Optional[int] = ...) -> None: ...

class Cut(_message.Message):
    __slots__ = ("number", "refused", "code", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    refused: bool
    code: str
    reason: str
    def __init__(self, number: _Optional[int] = ..., refused: _Optional[bool] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RowsQuery(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IdCountQuery(_message.Message):
    __slots__ = ("parties",)
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    parties: int
    def __init__(self, parties: _Optional[int] = ...) -> None: ...

class AlignQuery(_message.Message):
    __slots__ = ("sizes",)
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class PlacesQuery(_message.Message):
    __slots__ = ("total", "sizes", "places")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    total: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    places: bytes
    def __init__(self, total: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., places: _Optional[bytes] = ...) -> None: ...

class ReachQuery(_message.Message):
    __slots__ = ("total", "sizes", "places")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    total: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    places: bytes
    def __init__(self, total: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., places: _Optional[bytes] = ...) -> None: ...

class SummaryQuery(_message.Message):
    __slots__ = ("numeric", "levels", "classes", "figures", "times", "sites")
    NUMERIC_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    numeric: int
    levels: _containers.RepeatedScalarFieldContainer[int]
    classes: int
    figures: int
    times: int
    sites: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, numeric: _Optional[int] = ..., levels: _Optional[_Iterable[int]] = ..., classes: _Optional[int] = ..., figures: _Optional[int] = ..., times: _Optional[int] = ..., sites: _Optional[_Iterable[str]] = ...) -> None: ...

class LevelsQuery(_message.Message):
    __slots__ = ("columns", "places", "counts", "checks")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    columns: int
    places: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    checks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, columns: _Optional[int] = ..., places: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., checks: _Optional[_Iterable[int]] = ...) -> None: ...

class EvaluationQuery(_message.Message):
    __slots__ = ("rows", "metrics", "sets", "sites", "scores", "classes", "threshold", "weight", "caps", "survival")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CAPS_FIELD_NUMBER: _ClassVar[int]
    SURVIVAL_FIELD_NUMBER: _ClassVar[int]
    rows: int
    metrics: _containers.RepeatedScalarFieldContainer[str]
    sets: _containers.RepeatedScalarFieldContainer[str]
    sites: _containers.RepeatedScalarFieldContainer[str]
    scores: bool
    classes: int
    threshold: float
    weight: Scale
    caps: _containers.RepeatedScalarFieldContainer[float]
    survival: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, rows: _Optional[int] = ..., metrics: _Optional[_Iterable[str]] = ..., sets: _Optional[_Iterable[str]] = ..., sites: _Optional[_Iterable[str]] = ..., scores: _Optional[bool] = ..., classes: _Optional[int] = ..., threshold: _Optional[float] = ..., weight: _Optional[_Union[Scale, _Mapping]] = ..., caps: _Optional[_Iterable[float]] = ..., survival: _Optional[_Iterable[float]] = ...) -> None: ...

class MagnitudesQuery(_message.Message):
    __slots__ = ("metrics",)
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, metrics: _Optional[_Iterable[str]] = ...) -> None: ...

class BinCountsQuery(_message.Message):
    __slots__ = ("sizes", "score", "rounds")
    SIZES_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    score: int
    rounds: int
    def __init__(self, sizes: _Optional[_Iterable[int]] = ..., score: _Optional[int] = ..., rounds: _Optional[int] = ...) -> None: ...

class QuantileQuery(_message.Message):
    __slots__ = ("rows", "sizes", "starts", "widths", "subdivisions", "weight")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    WIDTHS_FIELD_NUMBER: _ClassVar[int]
    SUBDIVISIONS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    rows: int
    sizes: bytes
    starts: bytes
    widths: bytes
    subdivisions: bytes
    weight: Scale
    def __init__(self, rows: _Optional[int] = ..., sizes: _Optional[bytes] = ..., starts: _Optional[bytes] = ..., widths: _Optional[bytes] = ..., subdivisions: _Optional[bytes] = ..., weight: _Optional[_Union[Scale, _Mapping]] = ...) -> None: ...

class BinsQuery(_message.Message):
    __slots__ = ("features",)
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    features: int
    def __init__(self, features: _Optional[int] = ...) -> None: ...

class StartQuery(_message.Message):
    __slots__ = ("rows", "gradient", "hessian", "sizes", "cuts", "kinds", "means", "times")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    HESSIAN_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    MEANS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    rows: int
    gradient: Scale
    hessian: Scale
    sizes: bytes
    cuts: bytes
    kinds: bytes
    means: _containers.RepeatedCompositeFieldContainer[LevelMeans]
    times: TimeGrid
    def __init__(self, rows: _Optional[int] = ..., gradient: _Optional[_Union[Scale, _Mapping]] = ..., hessian: _Optional[_Union[Scale, _Mapping]] = ..., sizes: _Optional[bytes] = ..., cuts: _Optional[bytes] = ..., kinds: _Optional[bytes] = ..., means: _Optional[_Iterable[_Union[LevelMeans, _Mapping]]] = ..., times: _Optional[_Union[TimeGrid, _Mapping]] = ...) -> None: ...

class TimeGrid(_message.Message):
    __slots__ = ("starts", "events", "validation")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedScalarFieldContainer[float]
    events: _containers.RepeatedScalarFieldContainer[float]
    validation: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, starts: _Optional[_Iterable[float]] = ..., events: _Optional[_Iterable[float]] = ..., validation: _Optional[_Iterable[float]] = ...) -> None: ...

class TimesQuery(_message.Message):
    __slots__ = ("rows", "starts", "weight", "sets")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    starts: _containers.RepeatedScalarFieldContainer[float]
    weight: Scale
    sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rows: _Optional[int] = ..., starts: _Optional[_Iterable[float]] = ..., weight: _Optional[_Union[Scale, _Mapping]] = ..., sets: _Optional[_Iterable[str]] = ...) -> None: ...

class LevelMeans(_message.Message):
    __slots__ = ("folds", "values")
    FOLDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    folds: int
    values: bytes
    def __init__(self, folds: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class LevelSumsQuery(_message.Message):
    __slots__ = ("rows", "slots", "gradient", "hessian", "counted", "weight")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    HESSIAN_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    rows: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    gradient: Scale
    hessian: Scale
    counted: bool
    weight: Scale
    def __init__(self, rows: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., gradient: _Optional[_Union[Scale, _Mapping]] = ..., hessian: _Optional[_Union[Scale, _Mapping]] = ..., counted: _Optional[bool] = ..., weight: _Optional[_Union[Scale, _Mapping]] = ...) -> None: ...

class Scale(_message.Message):
    __slots__ = ("exponent", "bits")
    EXPONENT_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    exponent: int
    bits: int
    def __init__(self, exponent: _Optional[int] = ..., bits: _Optional[int] = ...) -> None: ...

class HistogramQuery(_message.Message):
    __slots__ = ("rows", "tree", "splits", "nodes", "bins", "gradient", "hessian", "widths", "elected", "threshold", "grouped", "at_risk")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    HESSIAN_FIELD_NUMBER: _ClassVar[int]
    WIDTHS_FIELD_NUMBER: _ClassVar[int]
    ELECTED_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    GROUPED_FIELD_NUMBER: _ClassVar[int]
    AT_RISK_FIELD_NUMBER: _ClassVar[int]
    rows: int
    tree: int
    splits: Splits
    nodes: _containers.RepeatedScalarFieldContainer[int]
    bins: int
    gradient: Scale
    hessian: Scale
    widths: bytes
    elected: _containers.RepeatedCompositeFieldContainer[Elected]
    threshold: float
    grouped: bool
    at_risk: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, rows: _Optional[int] = ..., tree: _Optional[int] = ..., splits: _Optional[_Union[Splits, _Mapping]] = ..., nodes: _Optional[_Iterable[int]] = ..., bins: _Optional[int] = ..., gradient: _Optional[_Union[Scale, _Mapping]] = ..., hessian: _Optional[_Union[Scale, _Mapping]] = ..., widths: _Optional[bytes] = ..., elected: _Optional[_Iterable[_Union[Elected, _Mapping]]] = ..., threshold: _Optional[float] = ..., grouped: _Optional[bool] = ..., at_risk: _Optional[_Iterable[float]] = ...) -> None: ...

class Elected(_message.Message):
    __slots__ = ("features", "bins")
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    features: _containers.RepeatedScalarFieldContainer[int]
    bins: int
    def __init__(self, features: _Optional[_Iterable[int]] = ..., bins: _Optional[int] = ...) -> None: ...

class VoteQuery(_message.Message):
    __slots__ = ("rows", "tree", "splits", "nodes", "features", "parties", "gradient", "hessian")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    HESSIAN_FIELD_NUMBER: _ClassVar[int]
    rows: int
    tree: int
    splits: Splits
    nodes: _containers.RepeatedScalarFieldContainer[int]
    features: int
    parties: int
    gradient: Scale
    hessian: Scale
    def __init__(self, rows: _Optional[int] = ..., tree: _Optional[int] = ..., splits: _Optional[_Union[Splits, _Mapping]] = ..., nodes: _Optional[_Iterable[int]] = ..., features: _Optional[int] = ..., parties: _Optional[int] = ..., gradient: _Optional[_Union[Scale, _Mapping]] = ..., hessian: _Optional[_Union[Scale, _Mapping]] = ...) -> None: ...

class Splits(_message.Message):
    __slots__ = ("columns", "categories")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    columns: bytes
    categories: bytes
    def __init__(self, columns: _Optional[bytes] = ..., categories: _Optional[bytes] = ...) -> None: ...

class ResidualQuery(_message.Message):
    __slots__ = ("rows", "tree", "splits", "nodes", "starts", "width", "weight")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    rows: int
    tree: int
    splits: Splits
    nodes: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    width: int
    weight: Scale
    def __init__(self, rows: _Optional[int] = ..., tree: _Optional[int] = ..., splits: _Optional[_Union[Splits, _Mapping]] = ..., nodes: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., width: _Optional[int] = ..., weight: _Optional[_Union[Scale, _Mapping]] = ...) -> None: ...

class RangeQuery(_message.Message):
    __slots__ = ("rows", "features", "divisions")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    DIVISIONS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    features: int
    divisions: int
    def __init__(self, rows: _Optional[int] = ..., features: _Optional[int] = ..., divisions: _Optional[int] = ...) -> None: ...

class SumsQuery(_message.Message):
    __slots__ = ("rows", "tree", "splits", "nodes")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    rows: int
    tree: int
    splits: Splits
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[int] = ..., tree: _Optional[int] = ..., splits: _Optional[_Union[Splits, _Mapping]] = ..., nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class EndRoundQuery(_message.Message):
    __slots__ = ("rows", "tree", "splits", "values", "metrics", "weight", "exponents", "sets", "sizes", "risk", "bins")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    EXPONENTS_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    RISK_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    tree: int
    splits: Splits
    values: LeafValues
    metrics: _containers.RepeatedScalarFieldContainer[str]
    weight: Scale
    exponents: bool
    sets: _containers.RepeatedScalarFieldContainer[str]
    sizes: bool
    risk: Scale
    bins: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[int] = ..., tree: _Optional[int] = ..., splits: _Optional[_Union[Splits, _Mapping]] = ..., values: _Optional[_Union[LeafValues, _Mapping]] = ..., metrics: _Optional[_Iterable[str]] = ..., weight: _Optional[_Union[Scale, _Mapping]] = ..., exponents: _Optional[bool] = ..., sets: _Optional[_Iterable[str]] = ..., sizes: _Optional[bool] = ..., risk: _Optional[_Union[Scale, _Mapping]] = ..., bins: _Optional[_Iterable[int]] = ...) -> None: ...

class LeafValues(_message.Message):
    __slots__ = ("nodes", "values")
    NODES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    nodes: bytes
    values: bytes
    def __init__(self, nodes: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class TrainRequest(_message.Message):
    __slots__ = ("terms", "wish", "request")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    terms: str
    wish: Wish
    request: Request
    def __init__(self, terms: _Optional[str] = ..., wish: _Optional[_Union[Wish, str]] = ..., request: _Optional[_Union[Request, _Mapping]] = ...) -> None: ...

class TrainEvent(_message.Message):
    __slots__ = ("waiting", "round", "model", "failed")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    waiting: Waiting
    round: RoundDone
    model: ModelPart
    failed: Failed
    def __init__(self, waiting: _Optional[_Union[Waiting, _Mapping]] = ..., round: _Optional[_Union[RoundDone, _Mapping]] = ..., model: _Optional[_Union[ModelPart, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("parties", "absent")
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    parties: _containers.RepeatedScalarFieldContainer[str]
    absent: _containers.RepeatedCompositeFieldContainer[Absence]
    def __init__(self, parties: _Optional[_Iterable[str]] = ..., absent: _Optional[_Iterable[_Union[Absence, _Mapping]]] = ...) -> None: ...

class Absence(_message.Message):
    __slots__ = ("party", "seen")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    party: str
    seen: int
    def __init__(self, party: _Optional[str] = ..., seen: _Optional[int] = ...) -> None: ...

class RoundDone(_message.Message):
    __slots__ = ("round", "metrics", "seconds", "traffic")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    round: int
    metrics: _containers.RepeatedCompositeFieldContainer[MetricValue]
    seconds: float
    traffic: Traffic
    def __init__(self, round: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[MetricValue, _Mapping]]] = ..., seconds: _Optional[float] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class MetricValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("parties", "sent", "received")
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    parties: _containers.RepeatedScalarFieldContainer[str]
    sent: _containers.RepeatedScalarFieldContainer[int]
    received: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parties: _Optional[_Iterable[str]] = ..., sent: _Optional[_Iterable[int]] = ..., received: _Optional[_Iterable[int]] = ...) -> None: ...

class ModelPart(_message.Message):
    __slots__ = ("data", "last", "traffic")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    traffic: Traffic
    def __init__(self, data: _Optional[bytes] = ..., last: _Optional[bool] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("terms", "request")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    terms: str
    request: Request
    def __init__(self, terms: _Optional[str] = ..., request: _Optional[_Union[Request, _Mapping]] = ...) -> None: ...

class Review(_message.Message):
    __slots__ = ("number", "terms", "request")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    terms: str
    request: Request
    def __init__(self, number: _Optional[int] = ..., terms: _Optional[str] = ..., request: _Optional[_Union[Request, _Mapping]] = ...) -> None: ...

class Objections(_message.Message):
    __slots__ = ("number", "reasons", "notes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    reasons: _containers.RepeatedScalarFieldContainer[str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., reasons: _Optional[_Iterable[str]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckReply(_message.Message):
    __slots__ = ("sites",)
    SITES_FIELD_NUMBER: _ClassVar[int]
    sites: _containers.RepeatedCompositeFieldContainer[SiteReply]
    def __init__(self, sites: _Optional[_Iterable[_Union[SiteReply, _Mapping]]] = ...) -> None: ...

class SiteReply(_message.Message):
    __slots__ = ("party", "answered", "reasons", "notes")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    party: str
    answered: bool
    reasons: _containers.RepeatedScalarFieldContainer[str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, party: _Optional[str] = ..., answered: _Optional[bool] = ..., reasons: _Optional[_Iterable[str]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("version", "since", "now", "members", "sessions", "others")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    version: str
    since: int
    now: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionStatus]
    others: int
    def __init__(self, version: _Optional[str] = ..., since: _Optional[int] = ..., now: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[SessionStatus, _Mapping]]] = ..., others: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("role", "name", "since", "seen", "version", "adder")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDER_FIELD_NUMBER: _ClassVar[int]
    role: str
    name: str
    since: int
    seen: int
    version: str
    adder: str
    def __init__(self, role: _Optional[str] = ..., name: _Optional[str] = ..., since: _Optional[int] = ..., seen: _Optional[int] = ..., version: _Optional[str] = ..., adder: _Optional[str] = ...) -> None: ...

class SessionStatus(_message.Message):
    __slots__ = ("state", "name", "analyst", "terms", "program", "protection", "done", "rounds", "since", "parties", "awaited")
    STATE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ANALYST_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PARTIES_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    state: SessionState
    name: str
    analyst: str
    terms: str
    program: str
    protection: str
    done: int
    rounds: int
    since: int
    parties: _containers.RepeatedScalarFieldContainer[str]
    awaited: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[_Union[SessionState, str]] = ..., name: _Optional[str] = ..., analyst: _Optional[str] = ..., terms: _Optional[str] = ..., program: _Optional[str] = ..., protection: _Optional[str] = ..., done: _Optional[int] = ..., rounds: _Optional[int] = ..., since: _Optional[int] = ..., parties: _Optional[_Iterable[str]] = ..., awaited: _Optional[_Iterable[str]] = ...) -> None: ...

class LinkFrame(_message.Message):
    __slots__ = ("party", "content", "gone")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    party: str
    content: bytes
    gone: bool
    def __init__(self, party: _Optional[str] = ..., content: _Optional[bytes] = ..., gone: _Optional[bool] = ...) -> None: ...
