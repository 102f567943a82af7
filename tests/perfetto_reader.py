"""A Perfetto trace, read with Perfetto's own protobuf classes, as a reader sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

BEGIN, END, COUNTER = (
    getattr(proto.TrackEvent, f"TYPE_{kind}") for kind in ("SLICE_BEGIN", "SLICE_END", "COUNTER")
)


@dataclass
class ReadSlice:
    """A slice in nanoseconds; `depth` counts the slices that were open when it began."""

    name: str
    start: int
    depth: int
    args: dict[str, Any]
    flows: list[int]
    ended_flows: list[int]
    end: int = -1


@dataclass
class ReadTrack:
    process: str
    name: str
    slices: list[ReadSlice] = field(default_factory=list)
    values: list[tuple[int, float]] = field(default_factory=list)

    def at(self, depth: int) -> list[ReadSlice]:
        return [piece for piece in self.slices if piece.depth == depth]


def read(content: bytes | Path) -> dict[tuple[str, str], ReadTrack]:
    """The tracks by (process, name).  Fails on what a reader would not accept or would show wrongly."""
    trace = proto.Trace.FromString(content if isinstance(content, bytes) else content.read_bytes())
    names: dict[int, str] = {}
    arg_names: dict[int, str] = {}
    processes: dict[int, str] = {}
    tracks: dict[int, ReadTrack] = {}
    stacks: dict[int, list[ReadSlice]] = {}
    latest: dict[int, int] = {}
    assert trace.packet[0].sequence_flags & proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        arg_names |= {entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names}
        if packet.HasField("track_descriptor"):
            _describe(packet.track_descriptor, processes, tracks)
        if packet.HasField("track_event"):
            event = packet.track_event
            uuid = event.track_uuid
            assert packet.timestamp >= latest.get(uuid, 0), "events of a track must be in order"
            assert packet.sequence_flags & proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            latest[uuid] = packet.timestamp
            stack = stacks.setdefault(uuid, [])
            if event.type == COUNTER:
                tracks[uuid].values.append((packet.timestamp, event.double_counter_value))
            elif event.type == BEGIN:
                args = {
                    arg_names[a.name_iid]: getattr(a, a.WhichOneof("value")) for a in event.debug_annotations
                }
                piece = ReadSlice(
                    names[event.name_iid], packet.timestamp, len(stack), args,
                    list(event.flow_ids), list(event.terminating_flow_ids),
                )  # fmt: skip
                tracks[uuid].slices.append(piece)
                stack.append(piece)
            else:
                assert event.type == END
                stack.pop().end = packet.timestamp
    assert not any(stacks.values()), "every slice must end"
    found = {(track.process, track.name): track for track in tracks.values()}
    assert len(found) == len(tracks)
    return found


def _describe(track: Any, processes: dict[int, str], tracks: dict[int, ReadTrack]) -> None:
    assert track.uuid not in processes
    assert track.uuid not in tracks
    if track.HasField("process"):
        processes[track.uuid] = track.process.process_name
    else:
        name = track.thread.thread_name if track.HasField("thread") else track.name
        tracks[track.uuid] = ReadTrack(processes[track.parent_uuid], name)
