"""Traces of clusters as they are published: told by their columns, with what was left out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from arena_topo.errors import UsageError
from arena_topo.simulate import traces
from arena_topo.simulate.cases import Trace, TraceJob


def read(text: str) -> Trace:
    return traces.parse_trace(io.BytesIO(text.encode()), "trace.csv")


def refusal(text: str) -> UsageError:
    with pytest.raises(UsageError) as refused:
        read(text)
    return refused.value


def test_our_own_columns_may_tell_all_of_a_job():
    trace = read(
        "job_id,submit_s,duration_s,gpus,gpus_per_worker,workload,vc,priority,running_timeout_s\n"
        "a,100,60,8,4,VGG16,x,2,3600\n"
        "b,130,30,1,,,,,\n"
    )
    assert trace.jobs == (
        TraceJob("a", 0.0, 60.0, 8, 4, "vgg16", 2, 3600.0),
        TraceJob("b", 30.0, 30.0, 1),
    )
    assert (trace.layout, trace.shaped) == ("arena-topo", True)
    assert (trace.gpu_seconds, trace.span) == (510.0, 30.0)


@pytest.mark.parametrize(
    ("layout", "text", "job"),
    [
        (
            "Helios",
            (
                "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration\n"
                "7,u,16,64,2,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:01:10,x,600\n"
            ),
            TraceJob("7", 0.0, 600.0, 16),
        ),
        (
            "Helios",
            (
                "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,duration,queue\n"
                "d1,u,1,8,120,Pretrain,COMPLETED,2023-03-01 00:00:01+08:00,12.0,1.0\n"
            ),
            TraceJob("d1", 0.0, 12.0, 8),
        ),
        (
            "Tiresias",
            (
                "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
                "3,4,55,1000,vgg16,900,40\n"
            ),
            TraceJob("3", 0.0, 900.0, 4, workload="vgg16"),
        ),
        (
            "openb",
            (
                "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"
                "pod-1,1,1,2,1000,100,400\n"
            ),
            TraceJob("pod-1", 0.0, 300.0, 2, 2),
        ),
        (
            "Slurm",
            (
                "JobID|Submit|Elapsed|AllocTRES|\n"
                "12|2024-05-01T10:00:00|1-02:03:04|billing=8,cpu=8,gres/gpu=4,mem=1G,node=1|\n"
            ),
            TraceJob("12", 0.0, 93784.0, 4),
        ),
    ],
)
def test_published_layouts_are_told_by_their_columns(layout: str, text: str, job: TraceJob):
    trace = read(text)
    assert trace.layout == layout
    assert trace.jobs == (job,)


def test_the_job_log_of_philly_has_the_time_of_all_attempts():
    detail = [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}]
    first = {"start_time": "2017-10-09 07:04:04", "end_time": "2017-10-09 07:05:04"}
    last = {"start_time": "2017-10-09 08:00:00", "end_time": "2017-10-09 08:02:00"}
    log = [
        {
            "jobid": "application_1",
            "vc": "x",
            "submitted_time": "2017-10-09 07:02:33",
            "attempts": [{**first, "detail": []}, {**last, "detail": detail}],
        },
        {"jobid": "application_2", "submitted_time": "2017-10-09 07:00:00", "attempts": []},
    ]
    trace = read(json.dumps(log))
    assert trace.jobs == (TraceJob("application_1", 0.0, 180.0, 3),)
    assert trace.left_out == {"no attempt that has ended": 1}


def test_rows_that_are_no_jobs_are_left_out_and_counted():
    trace = read(
        "job_id,submit_s,duration_s,gpus,gpus_per_worker\n"
        "a,10,60,8,\n"
        "b,5,60,0,\n"
        "c,5,0,1,\n"
        "d,5,-1,1,\n"
        "e,5,nan,1,\n"
        "f,5,,1,\n"
        "g,inf,5,1,\n"
        "a,11,60,8,\n"
        "h,6,60,1.5,\n"
        "i,6,60,-2,\n"
        "j,7,60,8,3\n"
        "k,7\n"
        "l,7,1e12,1,\n"
        "m,7,60,1e9,\n"
        "z,5,60,2,\n"
    )
    assert [(job.name, job.submitted) for job in trace.jobs] == [("z", 0.0), ("a", 5.0)]
    assert trace.left_out == {
        "gpus is not a whole number of at least 0": 2,
        "no GPUs": 1,
        "no duration": 1,
        "a negative duration": 1,
        "duration_s is no number": 1,
        "duration_s is missing": 1,
        "submit_s is no number": 1,
        "a job of the same id": 1,
        "gpus is no multiple of gpus_per_worker": 1,
        "too few cells": 1,
        "a duration of more than ten years": 1,
        "more than 1,000,000 GPUs": 1,
    }
    assert traces.trace_text(trace) == (
        "2 jobs of a trace of arena-topo; left out: 2 (gpus is not a whole number of at least 0),"
        " 1 (no GPUs), 1 (no duration), 1 (a negative duration), 1 (duration_s is no number), and 7"
        " more reasons; 1 row out of order, sorted"
    )


def test_parts_of_gpus_and_steps_of_jobs_are_no_jobs():
    pods = read("name,num_gpu,gpu_milli,creation_time,deletion_time\na,1,460,0,9\nb,1,1000,0,9\n")
    assert pods.left_out == {"a part of a GPU": 1}
    steps = read("JobID|Submit|Elapsed|AllocTRES\n1|0|00:09:00|gres/gpu=1\n1.0|0|00:09:00|\n")
    assert steps.left_out == {"a step of a job": 1}


def test_unknown_columns_are_named_with_the_nearest_layout():
    refused = refusal("job_id,submit_s,duration,gpu\n")
    assert refused.message == "trace.csv: the columns are those of no trace that is known"
    assert refused.why == (
        "as a trace of arena-topo it lacks duration_s (is it 'duration'?), gpus (is it 'gpu'?); it"
        " has job_id, submit_s, duration, gpu"
    )
    assert "job_id,submit_s,duration_s,gpus" in (refused.hint or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace.csv: the trace is empty"),
        ("\n\n", "trace.csv: the trace is empty"),
        ("job_id,submit_s,duration_s,gpus\n", "trace.csv: the trace has no job to replay"),
        ("job_id,submit_s,duration_s,gpus\na,0,0,1\n", "trace.csv: the trace has no job to replay"),
        ('{"kind": "List"}', "trace.csv: this JSON is no job log of Philly"),
        ("[", "trace.csv: this JSON is no job log of Philly"),
        ("job_id,submit_s,duration_s,gpus\na,\0,1,1\n", "trace.csv: line 2 is no text"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, message: str):
    assert refusal(text).message == message


def test_a_trace_in_utf_16_is_refused():
    with pytest.raises(UsageError, match="not in UTF-8"):
        traces.parse_trace(io.BytesIO("job_id,submit_s".encode("utf-16")), "t")


def test_a_file_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(UsageError) as refused:
        traces.read_trace(str(tmp_path / "none.csv"))
    assert refused.value.why == "No such file or directory"


def test_too_many_jobs_are_refused_while_reading(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traces, "MAX_TRACE_JOBS", 2)
    rows = "".join(f"{job},0,1,1\n" for job in range(9))
    refused = refusal("job_id,submit_s,duration_s,gpus\n" + rows)
    assert refused.message == "trace.csv: the trace has more than 2 jobs"
    assert refused.why == "all jobs are kept in memory, to be sorted by their submission"


def test_a_job_log_that_is_too_large_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traces, "MAX_LOG", 2 * traces.MAX_LINE)
    refused = refusal("[" + " " * 4 * traces.MAX_LINE + "]")
    assert refused.message == "trace.csv: the job log has more than 0 GiB"
    assert "CSV, which is read line by line" in (refused.hint or "")


def test_a_generated_trace_is_that_of_its_seed():
    poisson = traces.Poisson.parse("poisson:400")
    one, again, other = (poisson.trace(seed, 512) for seed in (0, 0, 1))
    assert one == again
    assert one != other
    assert len(one.jobs) == 400
    sizes = [job.gpus for job in one.jobs]
    assert {*sizes} == {1, 2, 4, 8, 16, 32}
    assert 0.6 < sizes.count(1) / 400 < 0.76
    assert max(job.gpus for job in poisson.trace(0, 8).jobs) == 8


@pytest.mark.parametrize("text", ["poisson", "poisson:0", "poisson:-1", "uniform:5", "poisson:1e3"])
def test_what_to_generate_has_one_form(text: str):
    with pytest.raises(UsageError, match="expected poisson:JOBS"):
        traces.Poisson.parse(text)
