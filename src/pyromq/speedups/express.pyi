class Express:
    code: int

class Judge: ...
