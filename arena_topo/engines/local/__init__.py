"""The embedded engine: jobs as processes on this machine, in the same words as a cluster.

engine      the backend: what is asked of jobs, and answered
store       a job is a folder: what was submitted, its state, its logs; one lock for all
scheduler   which GPUs there are, who has them, and whose turn it is
supervisor  the process that runs one job
logs        what a pod said: written, read, followed
processes   which processes belong to a job, and how they are ended
mpirun      what stands in for mpirun and ssh in a job, and what command lines say
"""
