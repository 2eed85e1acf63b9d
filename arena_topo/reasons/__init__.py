"""Why a job is where it is: one verdict, its cause and what to try."""
