"""The Kubernetes engine: an API server with an MPI operator.

engine        the backend
kubeconfig    the address of the cluster, and the credentials; alone imports the kubernetes package
transport     requests over reused connections, TLS, proxies
response      a response of HTTP/1.1, decoded from bytes as they come
connection    requests with retries and deadlines: JSON in, JSON out
mpijob        every rule about a job: an MPIJob and its pods -> its JobStatus
podlog        the log of one pod: its container and run, and the meaning of refusals
following     the logs of all pods of a job at once: connections, lists of the pods, waits
containerlog  the steps of reading one log, across broken connections and restarts
streaming     the bytes of a log: lines and times
"""
