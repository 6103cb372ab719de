"""The command for Nsight Systems is what a shell needs; its export is read rightly.

The exports are built here, by the schema that NVIDIA documents:
https://docs.nvidia.com/nsight-systems/AnalysisGuide ("SQLite Schema Reference").
"""

import contextlib
import math
import os
import shlex
import sqlite3
import sys
from pathlib import Path

import pytest
from helpers import refused

from kit.diagnosis import phases
from kit.diagnosis.timeline import find_lanes
from kit.experiment import ExperimentError
from kit.tools import nsight, nsys_trace
from kit.tools.nsight import describe_nsys, make_nsys_command, read_nsys_report

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE ThreadNames (
    nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
    endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER,
    int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER,
    floatValue REAL, jsonTextId INTEGER, jsonText TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
    returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,
    mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL,
    blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
    staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,
    gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
    sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL,
    deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER,
    srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
    migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL,
    graphNodeId INTEGER, memKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL,
    graphExecId INTEGER NOT NULL);
CREATE TABLE OSRT_API (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    nestingLevel INTEGER, callchainId INTEGER NOT NULL);
"""
MAIN, ENGINE = 4242, 4300  # threads of process 4242
PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75


def serialize(process, thread):
    """Write an identifier as nsys does: hardware, virtual machine, process, thread."""
    return 1 << 56 | 2 << 48 | process << 24 | thread


class Export:
    """An export that is being written; times are in microseconds."""

    def __init__(self, path, *, registered=False, process=4242):
        self.path, self.registered, self.process = path, registered, process
        self.base, self.strings = 0, {}
        self.db = sqlite3.connect(path)
        if not self.db.execute("SELECT name FROM sqlite_master").fetchall():
            self.db.executescript(SCHEMA)

    def string(self, text):
        known = self.db.execute("SELECT id FROM StringIds WHERE value = ?", (text,))
        found = known.fetchone()
        if found is None:
            query = "INSERT INTO StringIds (value) VALUES (?)"
            return self.db.execute(query, (text,)).lastrowid
        return found[0]

    def insert(self, table, start, stop, **columns):
        times = [None if t is None else 1000 * (self.base + t) for t in (start, stop)]
        columns = {"start": times[0], "end": times[1], **columns}
        names = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        query = f"INSERT INTO {table} ({names}) VALUES ({marks})"
        self.db.execute(query, [*columns.values()])

    def label(self, text, start, stop, thread=MAIN, kind=PUSH_POP):
        told = {"textId": self.string(text)} if self.registered else {"text": text}
        owner = serialize(self.process, thread)
        told |= {"globalTid": owner, "domainId": 0, "eventType": kind}
        self.insert("NVTX_EVENTS", start, stop, **told)

    def call(self, name, start, stop, thread=MAIN, **columns):
        self.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            *(start, stop),
            **columns,
            eventClass=0,
            globalTid=serialize(self.process, thread),
            nameId=self.string(name),
            returnValue=0,
        )

    def device(self, kind, start, stop, stream, **columns):
        owner = serialize(self.process, 0)
        columns |= {"contextId": 1, "streamId": stream, "globalPid": owner}
        table = f"CUPTI_ACTIVITY_KIND_{kind}"
        self.insert(table, start, stop, **{"deviceId": 0, **columns})

    def kernel(self, name, start, stop, stream=7, device=0):
        sizes = "registersPerThread gridX gridY gridZ blockX blockY blockZ"
        sizes += " staticSharedMemory dynamicSharedMemory localMemoryPerThread"
        sizes += " localMemoryTotal gridId"
        names = {"shortName": self.string(name)}
        names["demangledName"] = self.string(f"void {name}<float>(int)")
        columns = dict.fromkeys(sizes.split(), 1) | names
        self.device("KERNEL", start, stop, stream, deviceId=device, **columns)

    def close(self):
        self.db.commit()
        self.db.close()
        return self.path


#: Microseconds of each phase in a step of 100 ms, by hand, of what `operations` writes.
EXPECTED = {
    "input": 30_000,
    "copies": 50 + 2_000,  # with the pause before it
    "forward": 50 + 4_000 + 20 + 2_000 + 10 + 2_000,
    "backward": 100 + 19_900,
    "optimizer": 6_000,
    "sync": 50 + 20_000,
    "python": 200 + 10 + 60 + 200 + 13_350,  # pauses, and what no gradient needs
}


def operations(export, number):
    """Write a step as `--pytorch=autograd-nvtx` records one on a GPU."""
    seq, op = 10 * number, 100 * number
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    export.label("step", 0, 99_000)
    export.label(f"{loader}, op_id = {op}", 200, 30_200)
    export.label(f"aten::to, op_id = {op + 1}", 30_250, 32_250)
    export.label(f"aten::copy_, op_id = {op + 2}", 30_260, 32_240)
    export.call("cudaMemcpyAsync_v3020", 30_300, 32_200)
    copy = {"bytes": 1 << 20, "copyKind": 1, "srcKind": 0, "dstKind": 2}
    export.device("MEMCPY", 30_310, 32_190, 7, **copy)
    export.label(f"aten::linear, seq = {seq}, op_id = {op + 3}", 32_300, 36_300)
    export.label(f"aten::addmm, seq = {seq}, op_id = {op + 4}", 32_310, 36_290)
    export.call("cudaLaunchKernel_v7000", 32_400, 32_410)
    export.kernel("ampere_sgemm_128x64", 32_500, 38_500)
    export.label(f"aten::relu, seq = {seq + 1}, op_id = {op + 5}", 36_320, 38_320)
    loss = f"aten::cross_entropy_loss, seq = {seq + 2}, op_id = {op + 6}"
    export.label(loss, 38_330, 40_330)
    export.label(f"aten::ones_like, op_id = {op + 7}", 40_340, 40_400)
    engine = "autograd::engine::evaluate_function: "
    for node, at, stop, place in [
        ("NllLossBackward0", 40_500, 44_000, 2),
        ("ReluBackward0", 44_100, 50_000, 1),
        ("AddmmBackward0", 50_100, 60_400, 0),
    ]:
        told = f", seq = {seq + place}, op_id = {op + 10 + place}"
        export.label(f"{engine}{node}{told}", at, stop, ENGINE)
        export.label(f"{node}{told}", at + 10, stop - 10, ENGINE)
        export.call("cudaLaunchKernel_v7000", at + 20, at + 30, ENGINE)
    export.kernel("dgrad_engine", 50_200, 62_000, stream=13)
    step = f"Optimizer.step#SGD.step, op_id = {op + 20}"
    export.label(step, 60_600, 66_600)
    export.label(f"aten::_foreach_add_, op_id = {op + 21}", 60_700, 66_500)
    export.call("cudaLaunchKernel_v7000", 60_800, 60_810)
    export.device("MEMSET", 62_100, 62_200, 13, value=0, bytes=64)
    export.label(f"aten::item, op_id = {op + 22}", 66_650, 86_650)
    scalar = f"aten::_local_scalar_dense, op_id = {op + 23}"
    export.label(scalar, 66_660, 86_640)
    export.call("cudaMemcpyAsync_v3020", 66_700, 66_710)
    export.call("cudaStreamSynchronize_v3020", 66_720, 86_600)


#: The same for `labels`.
LABELLED = {
    "input": 30_200,
    "copies": 1_900,
    "forward": 50 + 8_200,  # before and behind the copy that it holds
    "backward": 20_100,
    "optimizer": 6_000,
    "sync": 20_000,
    "python": 50 + 100 + 50 + 13_350,
}


def labels(export, number):
    """Write a step with the reader's labels only."""
    export.label(f"step {number}", 0, 99_000)
    export.label("load", 0, 30_200)
    export.label("Forward pass", 30_250, 40_400)
    export.call("cudaMemcpyAsync_v3020", 30_300, 32_200)
    export.label("attention", 32_500, 36_000)
    export.call("cudaLaunchKernel_v7000", 33_000, 33_010)
    export.kernel("ampere_sgemm_128x64", 33_100, 43_100)
    export.label("loss.backward", 40_400, 60_500)
    export.call("cudaLaunchKernel_v7000", 41_000, 41_010, ENGINE)
    export.label("optimizer_step", 60_600, 66_600)
    export.call("cudaLaunchKernel_v7000", 61_000, 61_010)
    export.call("cudaStreamSynchronize_v3020", 66_650, 86_650)


def write_export(path, step=operations, steps=4, **options):
    """Write a first, slow step, some steps of 100 ms, and the start of one more."""
    export = Export(path, **options)
    export.label("step", 0, 899_000)
    export.label("aten::empty, op_id = 1", 10, 800_000)
    for number in range(1, steps + 2):
        export.base = 800_000 + 100_000 * number
        step(export, number)
    return export.close()


@pytest.fixture
def path(tmp_path):
    return write_export(tmp_path / "train.sqlite")


def check_shares(report, expected):
    total = sum(expected.values())
    assert total == 100_000  # the hand has left out nothing
    told = {phase: time / total for phase, time in expected.items()}
    assert report.shares == pytest.approx(told, abs=1e-12)
    assert list(report.shares) == [p for p in phases.PHASES if p in expected]


def alter(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)
    return path


# Shares


@pytest.mark.parametrize("registered", [False, True], ids=["text", "textId"])
def test_shares_are_those_of_the_hand(tmp_path, registered):
    path = write_export(tmp_path / "a.sqlite", registered=registered)
    report = read_nsys_report(path)
    check_shares(report, EXPECTED)
    assert report.trace.steps == 4
    assert report.step_seconds == pytest.approx(0.1)


@pytest.mark.parametrize("step", [operations, labels])
def test_segments_part_the_time_without_a_gap(tmp_path, step):
    report = read_nsys_report(write_export(tmp_path / "a.sqlite", step))
    begin = report.trace.marks[0]
    for segment in report.segments:
        assert segment.start == begin < segment.stop
        begin = segment.stop
    assert begin == report.trace.marks[-1]
    assert math.isclose(sum(report.shares.values()), 1)


def test_labels_alone_give_honest_shares(tmp_path):
    report = read_nsys_report(write_export(tmp_path / "a.sqlite", labels))
    check_shares(report, LABELLED)
    assert "operations were not recorded" in repr(report)


def test_operations_need_no_note(path):
    notes = read_nsys_report(path).notes
    assert [note for note in notes if not note.startswith("Device")] == []


def test_a_label_around_a_hand_written_update_makes_it_the_optimizers(tmp_path):
    def update(export, number):
        export.label("step", 0, 100_000)
        export.label("aten::mm, seq = 5, op_id = 1", 0, 40_000)
        engine = "autograd::engine::evaluate_function: MmBackward0, seq = 5, op_id = 2"
        export.label(engine, 40_000, 60_000)
        export.label("update", 60_000, 80_000)
        export.label("aten::sub_, op_id = 3", 60_000, 80_000)
        export.label("aten::argmax, op_id = 4", 80_000, 100_000)

    report = read_nsys_report(write_export(tmp_path / "a.sqlite", update))
    expected = {"forward": 40_000, "backward": 20_000, "optimizer": 20_000}
    check_shares(report, expected | {"python": 20_000})
    assert "20% are operations that no gradient needs" in repr(report)


def test_the_innermost_label_counts(tmp_path):
    def nested(export, number):
        export.label("step", 0, 100_000)
        export.label("forward", 0, 90_000)
        export.label("model/load data", 10_000, 30_000)
        export.label("mystery", 40_000, 50_000)

    report = read_nsys_report(write_export(tmp_path / "a.sqlite", nested))
    expected = {"input": 20_000, "forward": 70_000, "python": 10_000}
    check_shares(report, expected)


def test_a_backward_pass_on_the_main_thread_is_found_and_parts_are_told_apart(tmp_path):
    engine = "autograd::engine::evaluate_function: AddBackward0"

    def twice(export, number):
        export.label("step", 0, 100_000)
        export.label("aten::add, seq = 1, op_id = 1", 0, 20_000)
        for begin in (20_000, 60_000):
            export.label(f"{engine}, seq = 1, op_id = 2", begin, begin + 9_000)
            export.label("aten::neg, op_id = 3", begin + 1_000, begin + 2_000)
            export.label(engine, begin + 12_000, begin + 20_000)
        export.label("aten::mul, seq = 1, op_id = 4", 40_000, 60_000)
        export.label("aten::mean, op_id = 5", 80_000, 100_000)

    report = read_nsys_report(write_export(tmp_path / "a.sqlite", twice))
    expected = {"forward": 40_000, "backward": 40_000, "python": 20_000}
    check_shares(report, expected)


def test_shapes_tell_an_update_from_metrics(tmp_path):
    grad = "torch::autograd::AccumulateGrad, op_id = 4, sizes = [[4, 2]]"
    engine = "autograd::engine::evaluate_function: MmBackward0, seq = 5, op_id = 2"

    def shaped(export, number):
        export.label("step", 0, 100_000)
        mm = "aten::mm, seq = 5, op_id = 1, sizes = [[3, 4], [4, 2]]"
        export.label(f"{mm}, input_op_ids = [(7,0), (8,1)]", 0, 40_000)
        export.label(engine, 40_000, 60_000)
        export.label(grad, 50_000, 55_000)
        export.label("aten::sub_, op_id = 3, sizes = [[4, 2], [4, 2]]", 60_000, 80_000)
        export.label("aten::argmax, op_id = 3, sizes = [[3, 2], []]", 80_000, 100_000)

    report = read_nsys_report(write_export(tmp_path / "a.sqlite", shaped))
    expected = {"forward": 40_000, "backward": 20_000, "optimizer": 20_000}
    check_shares(report, expected | {"python": 20_000})


# What the trace holds


def test_names_lose_their_numbers_and_keep_their_sequence(path):
    trace = read_nsys_report(path).trace
    names = {event.name: event for event in trace.events}
    assert names["aten::linear"].sequence >= 10
    assert names["aten::item"].sequence == -1
    assert not any("op_id" in name or "_v3020" in name for name in names)
    assert {"cudaMemcpyAsync", "cudaStreamSynchronize"} <= set(names)
    assert names["step"].is_label and not names["aten::to"].is_label
    assert trace.main == MAIN
    assert all(event.is_backward for event in trace.threads[ENGINE][::3])


def test_labels_of_pytorch_are_looked_through_and_operations_of_extensions_not(
    tmp_path,
):
    def sharded(export, number):
        export.label("step", 0, 100_000)
        export.label("FSDP::pre_forward (layer.1), op_id = 2", 0, 40_000)
        export.label("c10d::_allgather_base_, op_id = 3", 0, 40_000)
        export.label("FlashAttnFunc, seq = 5, op_id = 4", 40_000, 100_000)
        export.call("cuLaunchKernelEx", 50_000, 50_010)

    report = read_nsys_report(write_export(tmp_path / "a.sqlite", sharded))
    check_shares(report, {"forward": 60_000, "communication": 40_000})


def test_devices_keep_what_they_did(path):
    devices = read_nsys_report(path).trace.devices
    assert {(d.name, d.device, d.stream) for d in devices} == {
        ("Memcpy HtoD (Pageable -> Device)", 0, 7),
        ("ampere_sgemm_128x64", 0, 7),
        ("dgrad_engine", 0, 13),
        ("Memset", 0, 13),
    }
    assert [d.start for d in devices] == sorted(d.start for d in devices)
    assert len(devices) == 4 * 4


def test_a_copy_within_the_device_is_no_copy_to_it(tmp_path):
    def clones(export, number):
        export.label("step", 0, 100_000)
        for kind, begin in [(8, 0), (1, 50_000)]:
            export.label("aten::clone, op_id = 2", begin, begin + 50_000)
            tie, kind = {"correlationId": 10 * number + kind}, {"copyKind": kind}
            export.call("cudaMemcpyAsync_v3020", begin + 10, begin + 20, **tie)
            export.device("MEMCPY", begin + 30, begin + 40, 7, bytes=4, **kind, **tie)

    report = read_nsys_report(write_export(tmp_path / "a.sqlite", clones))
    check_shares(report, {"copies": 50_000, "forward": 50_000})


def test_a_graph_of_cuda_is_one_thing_that_the_device_does(path):
    export = Export(path)
    export.device("GRAPH_TRACE", 905_000, 906_000, 7, graphId=1, graphExecId=2)
    names = {d.name for d in read_nsys_report(export.close()).trace.devices}
    assert "CUDA graph" in names


def test_how_busy_a_device_is_counts_overlapping_streams_once(path):
    # 1,880 of the copy, 6,000 of one kernel, 11,800 of the other, 100 of the memset
    assert "Device 0 is busy 20% of the time." in repr(read_nsys_report(path))
    export = Export(path)
    for number in range(5):
        start = 900_000 + 100_000 * number + 32_500
        export.kernel("ampere_sgemm_128x64", start, start + 6_000, stream=9)
    assert "Device 0 is busy 20% of the time." in repr(read_nsys_report(export.close()))


def test_events_of_other_processes_are_left_out(path):
    before = read_nsys_report(path)
    export = Export(path, process=5000)
    export.label("load", 900_000, 1_300_000)
    export.call("cudaStreamSynchronize_v3020", 900_000, 1_300_000)
    export.kernel("theirs", 900_000, 1_300_000)
    after = read_nsys_report(export.close())
    assert after.shares == before.shares
    assert after.trace == before.trace


def test_marks_and_domains_are_no_labels(path):
    before = read_nsys_report(path).trace
    export = Export(path)
    export.label("step", 950_000, None, kind=MARK)
    export.label("NCCL", 950_000, None, kind=DOMAIN)
    assert read_nsys_report(export.close()).trace == before


def test_a_range_that_never_ended_and_one_across_threads_do_no_harm(path):
    before = read_nsys_report(path).shares
    export = Export(path)
    export.label("epoch", 905_000, None)
    export.label("request", 905_000, 1_250_000, kind=START_END)
    assert read_nsys_report(export.close()).shares == before


def test_rows_may_come_in_any_order(path):
    before = read_nsys_report(path)
    for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"):
        alter(
            path,
            f"CREATE TABLE turned AS SELECT * FROM {table} ORDER BY rowid DESC",
            f"DROP TABLE {table}",
            f"ALTER TABLE turned RENAME TO {table}",
        )
    assert read_nsys_report(path).shares == before.shares


# Steps


def test_the_first_step_is_left_out_unless_it_is_wanted(path):
    assert read_nsys_report(path).trace.steps == 4
    whole = read_nsys_report(path, skip=0)
    assert whole.trace.steps == 5
    assert whole.step_seconds == pytest.approx((0.9 + 0.4) / 5)


@pytest.mark.parametrize("name", ["step {}", "step_{}", "step#{}", "step{}", "step"])
def test_steps_may_be_numbered(tmp_path, name):
    def numbered(export, number):
        export.label(name.format(number), 0, 90_000)
        export.label("step size", 1_000, 2_000)

    report = read_nsys_report(write_export(tmp_path / "a.sqlite", numbered))
    assert report.trace.steps == 4


def test_another_label_may_be_around_the_steps(tmp_path):
    def named(export, number):
        export.label(f"ProfilerStep#{number}, op_id = {number}", 0, 90_000)

    path = write_export(tmp_path / "a.sqlite", named)
    assert read_nsys_report(path, step="ProfilerStep").trace.steps == 3


def test_the_thread_with_most_steps_takes_them(path):
    export = Export(path)
    for number in range(3):
        export.label("step", 10_000 * number, 10_000 * number + 9, thread=77)
    assert read_nsys_report(export.close()).trace.main == MAIN


def test_of_several_ranks_one_is_chosen(path):
    export = Export(path, process=5001)
    for number in range(1, 4):
        export.base = 1_000_000 * number
        export.label("step", 0, 90_000)
        export.label("forward", 0, 500_000)
    export.close()
    message = refused(lambda: read_nsys_report(path), "2 processes", "4242, 5001")
    assert "process=4242" in message
    check_shares(read_nsys_report(path, process=4242), EXPECTED)
    other = read_nsys_report(path, process=5001)
    assert other.shares == pytest.approx({"forward": 0.5, "python": 0.5})
    refused(lambda: read_nsys_report(path, process=7), "process=7", "4242, 5001")


def test_too_many_events_leave_steps_out_and_it_is_said(path, monkeypatch):
    monkeypatch.setattr(nsys_trace, "MOST_EVENTS", 60)
    report = read_nsys_report(path)
    assert report.trace.steps == 2
    check_shares(report, EXPECTED)
    assert "Of 4 steps these are the first" in repr(report)


# Older, newer and poorer exports


@pytest.mark.parametrize("kind", ["KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"])
def test_a_table_may_be_missing(path, kind):
    report = read_nsys_report(alter(path, f"DROP TABLE CUPTI_ACTIVITY_KIND_{kind}"))
    check_shares(report, EXPECTED)


def test_without_tables_of_cuda_labels_and_operations_remain(path):
    kinds = ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "GRAPH_TRACE")
    alter(path, *(f"DROP TABLE CUPTI_ACTIVITY_KIND_{kind}" for kind in kinds))
    shares = read_nsys_report(path).shares
    assert shares["input"] == pytest.approx(0.3)
    assert shares["backward"] == pytest.approx(0.2)
    assert "sync" not in shares


def test_columns_may_be_missing_or_null(path):
    alter(
        path,
        *(
            f"ALTER TABLE {table} DROP COLUMN {column}"
            for table, column in [
                ("NVTX_EVENTS", "textId"),
                ("NVTX_EVENTS", "domainId"),
                ("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind"),
                ("CUPTI_ACTIVITY_KIND_MEMCPY", "dstKind"),
                ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
            ]
        ),
        "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET globalPid = NULL",
        "INSERT INTO NVTX_EVENTS (start, eventType) VALUES (900000001, 59)",
    )
    report = read_nsys_report(path)
    check_shares(report, EXPECTED)
    assert "Memcpy HtoD" in {d.name for d in report.trace.devices}


def test_a_text_that_is_no_utf_8_does_no_harm(path):
    alter(
        path,
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES "
        f"(901000000, 902000000, 59, CAST(x'ff4142' AS TEXT), {serialize(4242, MAIN)})",
    )
    check_shares(read_nsys_report(path), EXPECTED)


def test_nothing_is_written_beside_an_export(path):
    alter(path, "PRAGMA journal_mode = WAL")
    before = path.read_bytes()
    os.chmod(path.parent, 0o555)
    try:
        check_shares(read_nsys_report(path), EXPECTED)
        assert [p.name for p in path.parent.iterdir()] == [path.name]
    finally:
        os.chmod(path.parent, 0o755)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "name", ["my run.sqlite", "50%.sqlite", "a?b#c.sqlite", "é.db"]
)
@pytest.mark.skipif(sys.platform == "win32", reason="names that Windows does not allow")
def test_a_file_may_have_any_name(tmp_path, name):
    report = read_nsys_report(str(write_export(tmp_path / name)))
    assert report.name == name
    check_shares(report, EXPECTED)


# The report


def test_the_picture_has_a_lane_for_each_thread_and_stream(path):
    report = read_nsys_report(path)
    lanes, marks = find_lanes([report], 3)
    assert set(lanes) == {
        "main thread",
        "backward thread",
        "device 0 stream 7",
        "device 0 stream 13",
        "waiting for data",
    }
    assert marks == pytest.approx([0, 0.1, 0.2, 0.3])
    assert [span.phase for span in lanes["backward thread"]] == ["backward"] * 9
    assert {s.phase for s in lanes["device 0 stream 7"]} == {"copies", ""}
    assert len(lanes["waiting for data"]) == 3
    figure = report.timeline(steps=2)
    for name in lanes:
        assert name in figure.alt
    assert "train.sqlite: 30% of a step is waiting for data" in figure.alt


def test_the_report_says_what_takes_most(path):
    report = read_nsys_report(path)
    lines = repr(report).splitlines()
    assert lines[0] == report.sentence()
    assert lines[0] == "train.sqlite: 30% of a step is waiting for data"
    assert any(line.split() == ["backward", "20.0%", "20.0", "ms"] for line in lines)
    assert any(line.startswith("4 steps, 100 ms each") for line in lines)


def test_the_report_is_a_table_in_a_notebook(path):
    shown = read_nsys_report(path)._repr_html_()
    assert "waiting for the device" in shown and "<table" in shown
    assert shown.count("<tr>") == 1 + len(EXPECTED)


def test_a_name_cannot_break_the_page(tmp_path):
    report = read_nsys_report(write_export(tmp_path / "<b>.sqlite"))
    assert "<b>" not in report._repr_html_()


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_a_picture_of_no_steps_is_refused(path, steps):
    report = read_nsys_report(path)
    refused(lambda: report.timeline(steps=steps), "steps=", "whole number")


def test_readers_labels_find_their_phases():
    for label, phase in [
        ("load", "input"),
        ("Data loading", "input"),
        ("next_batch", "input"),
        ("to device", "copies"),
        ("H2D", "copies"),
        ("FORWARD", "forward"),
        ("train/forward", "forward"),
        ("Backward pass", "backward"),
        ("bwd 12", "backward"),
        ("optimizer.step", "optimizer"),
        ("optimizer.zero_grad", ""),
        ("all_reduce", "communication"),
        ("epoch", ""),
        ("forward and backward", ""),
        ("", ""),
    ]:
        assert nsight._name_phase(label) == phase, label
    assert set(nsight._PHASES.values()) <= set(phases.PHASES)


# Bad input


def test_a_file_that_is_not_there(tmp_path):
    gone = tmp_path / "gone.sqlite"
    refused(lambda: read_nsys_report(gone), "gone.sqlite", "does not exist", "nsys")
    (tmp_path / "file").touch()
    refused(lambda: read_nsys_report(tmp_path / "file" / "a.sqlite"), "does not exist")


def test_a_folder(tmp_path):
    refused(lambda: read_nsys_report(tmp_path), "is a folder", ".sqlite")


@pytest.mark.parametrize("name", ["a\0b.sqlite", "n" * 5000])
def test_a_name_that_no_file_can_have(name):
    refused(lambda: read_nsys_report(name), "cannot be read")


def test_a_file_that_may_not_be_read(path, monkeypatch):
    def forbidden(self, *arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)
    refused(lambda: read_nsys_report(path), "Permission denied", "permissions")


def test_the_report_itself_instead_of_its_export(tmp_path):
    report = tmp_path / "train.nsys-rep"
    report.write_bytes(b"QDSTRM" + bytes(1000))
    said = refused(lambda: read_nsys_report(report), "is not an SQLite file")
    assert "nsys export --type=sqlite train.nsys-rep" in said


@pytest.mark.parametrize("content", [b"", b"SQLite", b'{"traceEvents": []}'])
def test_a_file_of_another_kind(tmp_path, content):
    other = tmp_path / "trace.json"
    other.write_bytes(content)
    said = refused(lambda: read_nsys_report(other), "is not an SQLite file")
    assert "nsys export --type=sqlite" in said


def test_a_database_of_another_program(tmp_path):
    other = alter(tmp_path / "cookies.sqlite", "CREATE TABLE cookies (name TEXT)")
    refused(lambda: read_nsys_report(other), "no export of Nsight Systems", "StringIds")


def test_an_export_without_labels(path):
    alter(path, "DROP TABLE NVTX_EVENTS")
    refused(lambda: read_nsys_report(path), "no labels", "--trace=nvtx")


def test_an_export_without_the_label_of_steps(tmp_path):
    def unlabelled(export, number):
        export.label(f"iteration_{number}", 0, 90_000)
        export.label("Optimizer.step#SGD.step, op_id = 3", 0, 5_000)
        export.label("aten::add, op_id = 4", 10, 4_000)

    path = write_export(tmp_path / "a.sqlite", unlabelled)
    alter(path, "DELETE FROM NVTX_EVENTS WHERE text = 'step'")
    said = refused(lambda: read_nsys_report(path), "step='step'", "'iteration' (5 ×)")
    assert "nvtx.range" in said
    assert "aten::" not in said and "Optimizer" not in said
    assert read_nsys_report(path, step="iteration").trace.steps == 3
    alter(path, "DELETE FROM NVTX_EVENTS")
    refused(lambda: read_nsys_report(path), "none")


def test_too_few_steps(path):
    alter(path, "DELETE FROM NVTX_EVENTS WHERE start > 950000000")
    said = refused(lambda: read_nsys_report(path), "2 × the label 'step'", "skip=1")
    assert "record 3 or more" in said
    assert read_nsys_report(path, skip=0).trace.steps == 1
    alter(path, "DELETE FROM NVTX_EVENTS WHERE start > 500000")
    refused(lambda: read_nsys_report(path, skip=0), "1 × the label 'step'", "2 or more")


@pytest.mark.parametrize("part", [0.3, 0.7, 0.98])
def test_an_export_that_was_cut_off(path, part):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    refused(lambda: read_nsys_report(path), "damaged", "Export the report again")


def test_an_export_with_a_hole(path):
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(path.stat().st_size - 4096))
    refused(lambda: read_nsys_report(path), "train.sqlite")


@pytest.mark.parametrize("bad", [None, 3, ["a.sqlite"], b"a.sqlite"])
def test_a_path_that_is_none(bad):
    refused(lambda: read_nsys_report(bad), "path=", "no path")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"step": ""}, "step=''"),
        ({"step": None}, "step=None"),
        ({"skip": -1}, "skip=-1"),
        ({"skip": 1.0}, "skip=1.0"),
        ({"skip": True}, "skip=True"),
    ],
)
def test_arguments_that_say_nothing(path, options, word):
    refused(lambda: read_nsys_report(path, **options), word)


# The command


@pytest.fixture
def script(tmp_path):
    made = tmp_path / "my script.py"
    made.write_text("print(1)")
    return made


def test_the_command_is_what_a_shell_needs(script):
    command = make_nsys_command(script, "--name", 'it\'s; a "run"', "--lr=1e-3", 7)
    words = shlex.split(command)
    assert words[:2] == ["nsys", "profile"]
    place = words.index("python")
    assert words[place:] == [
        *("python", str(script), "--name", 'it\'s; a "run"', "--lr=1e-3", "7")
    ]
    assert set(words[2:place]) == {
        "--trace=cuda,nvtx,cudnn,cublas,osrt",
        "--pytorch=autograd-nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        "--export=sqlite",
        "--output=my script",
    }


def test_the_command_does_what_it_says_in_a_shell(script, tmp_path):
    """A stand-in called nsys writes down its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / "nsys"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    command = make_nsys_command(script, "$HOME", "a  b", "*")
    with os.popen(f"PATH={shlex.quote(str(folder))}:$PATH {command}") as shell:
        assert shell.read().splitlines() == shlex.split(command)[1:]


def test_other_names_other_pythons_older_nsys(script):
    command = make_nsys_command(script, output="runs/a b", python="/opt/my env/python")
    words = shlex.split(command)
    assert "--output=runs/a b" in words
    assert words[-2:] == ["/opt/my env/python", str(script)]
    assert "--pytorch" not in make_nsys_command(script, pytorch=False)


@pytest.mark.parametrize("ending", ["", ".sqlite", ".nsys-rep"])
def test_the_output_may_have_the_ending_that_nsys_gives(script, ending):
    words = shlex.split(make_nsys_command(script, output=f"runs/v1.2{ending}"))
    assert "--output=runs/v1.2" in words


def test_a_module_may_stand_for_a_script():
    words = shlex.split(make_nsys_command("-m", "package.training", "--epochs", "3"))
    assert words[-5:] == ["python", "-m", "package.training", "--epochs", "3"]
    assert "--output=training" in words
    refused(lambda: make_nsys_command("-m"), "needs a module")


def test_a_script_that_is_none(tmp_path):
    gone = tmp_path / "gone.py"
    refused(lambda: make_nsys_command(gone), "script=", "gone.py", "is no file")
    refused(lambda: make_nsys_command(tmp_path), "is a folder")
    notebook = tmp_path / "a.ipynb"
    notebook.touch()
    refused(lambda: make_nsys_command(notebook), "notebook", "nbconvert")
    refused(lambda: make_nsys_command(""), "script=''")


@pytest.mark.parametrize("option", ["--epochs 3", "-n 3", "--lr 0.1 --epochs 3"])
def test_two_words_in_one_are_refused(script, option):
    said = refused(lambda: make_nsys_command(script, option), "more than one word")
    assert "'3'" in said


@pytest.mark.parametrize("option", ["--name=my run", "my run", "-", "- 3", "-3", "'"])
def test_words_with_spaces_may_be_meant(script, option):
    assert shlex.split(make_nsys_command(script, option))[-1] == option


def test_whether_nsys_is_here_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "is not on this machine" in describe_nsys()
    program = tmp_path / ("nsys.exe" if sys.platform == "win32" else "nsys")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert str(program) in describe_nsys()


def test_errors_are_those_of_the_kit():
    with pytest.raises(ExperimentError):
        read_nsys_report("nowhere.sqlite")
