"""Pools in a GPU's memory between processes: reading in place, dying, pipelines, handles."""

import pytest

import gpu_kit
from gpu_kit import needs_gpu

pytestmark = pytest.mark.usefixtures("directory")


PRODUCER = """
hear()
mine = gpu.stream()
with pool.loan(stream=mine) as loan:
    gpu.put(loan.__cuda_array_interface__["data"][0], A, mine)
say("published")
hear()
"""


@needs_gpu
def test_another_process_reads_in_place() -> None:
    with gpu_kit.script(gpu_kit.SCENE, PRODUCER) as producer, gpu_kit.script("""
        gpu.begin()
        tb.open_bus("detector")
        A = np.arange(24, dtype="f4").reshape(4, 6)
        reader = tb.Reader("camera/front", stream_ordered=True)
        say("ready")
        frame = reader.next(20)
        mine = gpu.stream()
        taken = take(frame, mine)
        later = Later(taken.tensor.data, A, mine)
        taken.close()
        assert (later.array() == A).all()
        assert frame.info.lane == "direct" and frame.info.copies == 0
        frame.release(stream=mine)
        soon(lambda: reader.stats().held == 0)
        say("right")
        """) as consumer:
        assert consumer.hear() == "ready"
        producer.tell()
        assert producer.hear() == "published"
        assert consumer.hear() == "right"
        producer.tell()
        producer.end()
        consumer.end()


@needs_gpu
def test_g15_a_frame_of_a_killed_producer_is_incomplete() -> None:
    with gpu_kit.script(gpu_kit.SCENE, """
        hear()
        mine = gpu.stream()
        brake = Brake(mine)
        pool.write(A, stream=mine)
        say("pending")
        hear()
        """) as producer, gpu_kit.script("""
        gpu.begin()
        tb.open_bus("detector")
        reader = tb.Reader("camera/front", stream_ordered=True)
        say("ready")
        frames = [reader.next(20)]
        frames.append(reader.frame(frames[0].handle))
        mine = gpu.stream()
        for frame in frames:
            frame.wait(mine)
        say("waiting")
        hear()
        gpu.synchronize(mine)
        try:
            frames[0].poll()
            raise SystemExit("complete")
        except tb.IncompleteError as error:
            assert "do not use" in str(error)
        try:
            frames[0].release(stream=mine)
            raise SystemExit("complete")
        except tb.IncompleteError:
            pass
        try:
            with frames[1]:
                pass
            raise SystemExit("complete")
        except tb.IncompleteError:
            pass
        soon(lambda: reader.stats().held == 0)
        say("incomplete")
        """) as consumer:
        assert consumer.hear() == "ready"
        producer.tell()
        assert producer.hear() == "pending"
        assert consumer.hear() == "waiting"
        producer.kill()
        consumer.tell()
        assert consumer.hear() == "incomplete"
        consumer.end()


@needs_gpu
def test_a_pipeline_is_ordered_on_the_gpu() -> None:
    """A frame's work is enqueued before the frame before it is complete, on either side."""
    frames = 2000 if gpu_kit.REAL else 200
    with gpu_kit.script(gpu_kit.SCENE, f"frames = {frames}", """
        every = tb.Pool.register(tb.Spec(4096, "i4"), name="every", device="cuda:0", slots=4,
                                 policy="every", wait_readers=1)
        mine = gpu.stream()
        for i in range(frames):
            every.write(np.full(4096, i, "i4"), 20, stream=mine)
        say("written")
        hear()
        every.wait_acked(timeout=20)
        """) as producer, gpu_kit.script(f"frames = {frames}", """
        gpu.begin()
        tb.open_bus("detector")
        like = np.zeros(4096, "i4")
        mine = gpu.stream()
        with tb.Reader("camera/every", every=True, ack=True, stream_ordered=True) as reader:
            seen = []
            for frame in reader:
                taken = take(frame, mine)
                seen.append(Later(taken.tensor.data, like, mine))
                taken.close()
                reader.ack(frame)
                if len(seen) == frames:
                    break
            del frame
            for i, later in enumerate(seen):
                assert (later.array() == i).all(), i
            soon(lambda: reader.stats().held == 0)
        say("right")
        """) as consumer:
        assert consumer.hear() == "right"
        assert producer.hear() == "written"
        consumer.end()
        producer.tell()
        producer.end()


@needs_gpu
def test_handles_come_stream_ordered_when_the_bus_says_so() -> None:
    with gpu_kit.script(gpu_kit.SCENE, """
        mine = gpu.stream()
        brake = Brake(mine)
        hear()
        say(bytes(pool.write(A, stream=mine)).hex())
        hear()
        brake.off()
        hear()
        """) as producer, gpu_kit.script("""
        gpu.begin()
        bus = tb.open_bus("detector")
        assert bus.stream_ordered is False
        bus.stream_ordered = True
        frame = tb.open_frame(tb.Handle(bytes.fromhex(hear())))
        say(frame.poll())
        hear()
        assert frame.copy()[0, 1] == 1
        frame.release()
        """) as consumer:
        producer.tell()
        consumer.tell(producer.hear())
        assert consumer.hear() == "False"
        producer.tell()
        consumer.tell()
        consumer.end()
        producer.tell()
        producer.end()


@pytest.mark.skipif(gpu_kit.REAL, reason="a driver's failures are asked of the fake one")
@needs_gpu
def test_the_owner_is_told_what_hinders_a_reader() -> None:
    with gpu_kit.script(gpu_kit.SCENE, """
        assert pool.stats().troubles == 0 and pool.stats().trouble is None
        pool.write(A)
        say("ready")
        soon(lambda: pool.stats().troubles == 1)
        told = pool.stats().trouble
        assert told.startswith("TB_E_") and "`detector` (pid " in told, told
        assert "cuMemImportFromShareableHandle" in told, told
        say("told")
        """) as producer, gpu_kit.script("""
        import os
        hear()
        os.environ["FAKE_CUDA_FAIL"] = "cuMemImportFromShareableHandle:1:801"
        gpu.begin()
        tb.open_bus("detector")
        try:
            tb.Reader("camera/front", stream_ordered=True).next(20)
            raise SystemExit("no error")
        except tb.Error as error:
            assert "cuMemImportFromShareableHandle" in str(error)
        hear()
        """) as consumer:
        assert producer.hear() == "ready"
        consumer.tell()
        assert producer.hear() == "told"
        consumer.tell()
        producer.end()
        consumer.end()
