"""The embedded engine: jobs as processes on this machine, in the same words as a cluster.

engine      the backend: the verbs, on jobs of this machine
store       a job is a folder: what was submitted, its state, its logs; a lock for all
scheduler   which GPUs there are, who has them, and whose turn it is
supervisor  the process that runs a job
logs        the output of the pods of a job, read and followed
processes   which processes belong to a job, and how they are ended
pod_command a command that `attach` runs as a pod would run it
mpirun      the stand-ins for mpirun and ssh in a job, and what command lines say
"""
