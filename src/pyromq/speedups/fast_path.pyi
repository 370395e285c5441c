class FastHandler:
    code: int

class FastGuard: ...
