class LocalJobs:
    name="local"
class KeptLogs:
    name="kept"
