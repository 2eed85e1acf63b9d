"""The Kubernetes engine: an API server with an MPI operator.

engine        the backend
kubeconfig    the address of the cluster, and the credentials; alone imports the kubernetes package
transport     requests over reused connections, TLS, proxies
response      a response of HTTP/1.1, decoded from bytes as they come
connection    requests with retries and deadlines: JSON in, JSON out
shapes        the objects of an API server as typed fields
mpijob        every rule about a job: an MPIJob and its pods -> its JobStatus
jobs          the MPIJobs of a cluster, for the engine and the queue; `job_writer` writes them
queue         the requests of the protocol by which gangs get their GPUs
watch_cache   lists that are read once and then watched; `job_watch`: the same for one job
podlog        the log of one pod: its container and run, and the meaning of refusals
log_follower  the logs of all pods of a job at once: connections, lists of the pods, waits
containerlog  the steps of reading one log, across broken connections and restarts
log_position  the bytes of a log: its new lines
"""
