"""What the tests of Arrow arrays share."""


def receive(pair, array):
    source, sink = pair
    source.send_output("out", array)
    return sink.next(10)


def check(pair, array):
    """Send an array; what arrives is the same in every respect."""
    got = receive(pair, array).arrow()
    got.validate(full=True)
    assert got.type.equals(array.type, check_metadata=True)
    assert len(got) == len(array) and got.null_count == array.null_count, array.type
    assert got.equals(array), f"{got}\nis not\n{array}"
    return got
