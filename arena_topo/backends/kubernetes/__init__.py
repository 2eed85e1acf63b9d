"""An API server with an MPI operator: how it is found, asked, understood and told.

engine      the backend: what is asked of jobs, and answered
kubeconfig  which cluster, and as whom
connection  requests over urllib3; the only room that knows the kubernetes package
status      an MPIJob and its pods -> how the job stands
podlog      the log of a pod, followed across broken streams
"""
