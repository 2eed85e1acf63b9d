"""An API server with an MPI operator: how it is found, asked, understood and told.

engine      the backend: what is asked of jobs, and answered
kubeconfig  which cluster, and as whom
connection  requests over urllib3; the only room that knows the kubernetes package
status      an MPIJob and its pods -> how the job stands
podlog      the log of one pod: which container and run, and what refusals mean
following   the logs of all pods of a job at once, through breaks and restarts
streaming   their bytes: sockets, HTTP, lines and times
"""
