class Reads: 
    name="reads"
class Writes:
    name="writes"
