"""What a placement means for the time of a training: steps, not GB/s.

Files:

    step_time  the form of a step, and the ratio of two placements with its range
    calibration  measured placements -> the bandwidths of a pool, and the overlap of a training
    times      the times of one training on several placements
    wording    times and ratios as text and as JSON
    workloads  well-known trainings: bytes of gradients, and measured steps on a single GPU
"""

from arena_topo.training.step_time import REPEAT as REPEAT
from arena_topo.training.step_time import Overlap as Overlap
from arena_topo.training.step_time import Ratio as Ratio
from arena_topo.training.step_time import Span as Span
from arena_topo.training.step_time import Workload as Workload
from arena_topo.training.step_time import all_reduce_span as all_reduce_span
from arena_topo.training.step_time import all_reduce_time as all_reduce_time
from arena_topo.training.step_time import overlap_in as overlap_in
from arena_topo.training.step_time import ratio as ratio
from arena_topo.training.step_time import step_time as step_time
from arena_topo.training.workloads import WORKLOADS as WORKLOADS
from arena_topo.training.workloads import workload_on as workload_on
