"""Two GPUs: pools of one that are read and written from the other, in another process or in this
one; with the driver's own calls (see test_gpu.py). With one real GPU these are skipped."""

import pytest

import gpu_kit
from gpu_kit import needs_fake, needs_gpu, needs_two

pytestmark = [pytest.mark.usefixtures("directory"), needs_gpu, needs_two]

PEERS = "devices=2;peer=0-1"

PRODUCER = """
gpu.begin(HOME)
tb.open_bus("camera")
A = np.arange(24, dtype="f4").reshape(4, 6)
pool = tb.Pool.register(A, name="front", device=f"cuda:{HOME}", slots=4, policy="every",
                        wait_readers=1)
mine = gpu.stream()
hear()
for i in range(FRAMES):
    pool.write(A + i, 20, stream=mine)
say("written")
hear()
"""

CONSUMER = """
gpu.begin(1 - HOME)
tb.open_bus("detector")
A = np.arange(24, dtype="f4").reshape(4, 6)
mine = gpu.stream()
def reach():
    try:
        return tb.Reader("camera/front", every=True, stream_ordered=True, device=f"cuda:{1 - HOME}")
    except tb.UnsupportedError as error:
        assert "cuda:0" in str(error) and "cuda:1" in str(error), error
"""


@pytest.mark.parametrize("home", [0, 1])
def test_a_reader_on_a_peer_reads_in_place(home: int) -> None:
    given = f"HOME, FRAMES = {home}, 40"
    with gpu_kit.script(given, PRODUCER, machine=PEERS) as producer, gpu_kit.script(
            given, CONSUMER, """
        reader = reach()
        say("no" if reader is None else "ready")
        if reader is None:
            raise SystemExit
        for i in range(FRAMES):
            frame = reader.next(20)
            assert frame.device == f"cuda:{1 - HOME}" and frame.info.copies == 1, frame.info
            taken = take(frame, mine)
            assert taken.tensor.device_id == 1 - HOME
            later = Later(taken.tensor.data, A, mine)
            taken.close()
            frame.release()
            assert (later.array() == A + i).all(), i
        soon(lambda: reader.stats().held == 0)
        assert reader.stats().missed == 0
        say("right")
        """, machine=PEERS) as consumer:
        said = consumer.hear()
        if said == "no":
            assert gpu_kit.REAL
            pytest.skip("the GPUs do not reach each other")
        producer.tell()
        assert consumer.hear() == "right"
        assert producer.hear() == "written"
        consumer.end()
        producer.tell()
        producer.end()


@needs_fake
def test_a_reader_that_cannot_reach_the_pool_is_told() -> None:
    given = "HOME, FRAMES = 0, 1"
    with gpu_kit.script(given, PRODUCER, machine="devices=2") as producer, gpu_kit.script(
            given, CONSUMER, """
        assert reach() is None
        # Where the pool is it can read, and copy from there.
        with tb.Reader("camera/front", every=True) as reader:
            say("ready")
            assert (reader.next(20).copy() == A).all()
        """, machine="devices=2") as consumer:
        assert consumer.hear() == "ready"
        producer.tell()
        assert producer.hear() == "written"
        consumer.end()
        producer.tell()
        producer.end()


@pytest.mark.parametrize("peers", ["1", "0"])
@pytest.mark.parametrize("home", [0, 1])
def test_a_tensor_of_the_other_gpu_is_written(home: int, peers: str) -> None:
    """Directly, or through the host; in the order of its own default stream, or of a stream
    given."""
    gpu_kit.run(f"HOME, PEERS = {home}, {peers!r}", """
        os.environ["TENSORBUS_GPU_PEERS"] = PEERS
        gpu.begin(1 - HOME)
        tb.open_bus("camera")
        A = np.arange(24, dtype="f4").reshape(4, 6)
        pool = tb.Pool.register(A, name="front", device=f"cuda:{HOME}")
        reader = tb.Reader("camera/front", stream_ordered=True)
        memory = Memory(np.zeros_like(A))  # on the current device, which is the other one
        for kind in (Exporter, Interface):
            more = {"device": 1 - HOME} if kind is Exporter else {}
            pool.write(kind(memory, **more))  # whatever the first copy has to prepare
            for ours in (None, 0, gpu.stream()):
                value = A + 10 * (ours or 0) % 1000 + 1
                brake = Brake(ours or 0)
                gpu.put(memory.address, value, ours or 0)  # on its way
                timer = threading.Timer(0.05, brake.off)
                timer.start()
                pool.write(kind(memory, **more), stream=ours)
                frame = reader.newest(20)
                assert frame.device == f"cuda:{HOME}"
                assert (frame.copy() == value).all(), (kind, ours)
                frame.release()
                timer.join()
        """, machine=PEERS)
