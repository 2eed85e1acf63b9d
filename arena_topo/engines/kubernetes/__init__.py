"""The Kubernetes engine: an API server with an MPI operator.

engine        the backend
kubeconfig    the address of the cluster, and the credentials
connection    requests over urllib3; the only module that imports the kubernetes package
mpijob        every rule about a job: an MPIJob and its pods -> its JobStatus
podlog        the log of one pod: its container and run, and the meaning of refusals
following     the logs of all pods of a job at once: connections, lists of the pods, waits
containerlog  the steps of reading one log, across broken connections and restarts
streaming     the bytes of a log: HTTP, lines and times
"""
