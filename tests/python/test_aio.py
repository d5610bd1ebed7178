"""asyncio: loops that take no thread."""

import asyncio
import threading

import pytest

import kit
import tensorbus as tb


@pytest.fixture
def pool(bus: tb.Bus) -> tb.Pool:
    return tb.Pool.register(tb.Spec(4, "u1"), name="front", slots=8)


async def write_slowly(pool: tb.Pool, count: int) -> None:
    for value in range(count):
        await asyncio.sleep(0.002)
        pool.write(bytes([value] * 4), 0)


def test_an_asynchronous_loop(pool: tb.Pool) -> None:
    before = threading.active_count()

    async def main() -> list[int]:
        writer = asyncio.create_task(write_slowly(pool, 10))
        values = []
        former = None
        async for frame in tb.Reader("camera/front", every=True):
            assert former is None or former.released
            former = frame
            values.append(int(frame.numpy()[0]))
            if len(values) == 10:
                break
        await writer
        assert threading.active_count() == before
        return values

    assert asyncio.run(main()) == list(range(10))


def test_it_ends_when_the_owner_says_goodbye(directory: object) -> None:
    tb.open_bus("reader")

    async def main() -> int:
        with kit.Script("""
            tb.open_bus("camera")
            pool = tb.Pool.register(tb.Spec(1, "u1"), name="front", policy="every",
                                    wait_readers=1)
            for value in range(20):
                pool.write(b"x", 10)
            """) as script:
            reader = tb.Reader("camera/front", every=True)
            count = 0
            async for _ in reader:
                count += 1
            script.end()
            return count

    assert asyncio.run(asyncio.wait_for(main(), 20)) == 20


def test_it_raises_when_the_owner_dies(directory: object) -> None:
    tb.open_bus("reader")

    async def main() -> None:
        with kit.Script("""
            tb.open_bus("camera")
            pool = tb.Pool.register(tb.Spec(1, "u1"), name="front")
            pool.write(b"x")
            say("ready")
            hear()
            """) as script:
            script.hear()
            frames = aiter(tb.Reader("camera/front"))
            await anext(frames)
            asyncio.get_running_loop().call_later(0.05, script.kill)
            with pytest.raises(tb.OwnerDiedError):
                await anext(frames)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_tasks_share_a_reader(pool: tb.Pool) -> None:
    reader = tb.Reader("camera/front", every=True)

    async def work(seen: list[int]) -> None:
        async for frame in reader:
            seen.append(frame.sequence)
            await asyncio.sleep(0)

    async def main() -> list[int]:
        seen: list[int] = []
        tasks = [asyncio.create_task(work(seen)) for _ in range(3)]
        await write_slowly(pool, 30)
        while len(seen) < 30:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return seen

    seen = asyncio.run(asyncio.wait_for(main(), 20))
    assert sorted(seen) == list(range(1, 31))


def test_cancelling_loses_no_frame(pool: tb.Pool) -> None:
    reader = tb.Reader("camera/front", every=True)

    async def main() -> None:
        frames = aiter(reader)
        for value in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await anext(frames)
            pool.write(bytes([value] * 4))
            assert (await anext(frames)).numpy()[0] == value

    asyncio.run(main())
    assert reader.stats().missed == 0


def test_a_closed_reader_ends_a_task(pool: tb.Pool) -> None:
    reader = tb.Reader("camera/front")

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.02, reader.close)
        with pytest.raises(tb.ClosedError):
            async for _ in reader:
                pass

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_descriptor_is_for_any_event_loop(pool: tb.Pool) -> None:
    import select

    reader = tb.Reader("camera/front")
    number = reader.fileno()
    assert reader.fileno() == number
    with pytest.raises(tb.AgainError):
        reader.next(0)
    assert select.select([reader], [], [], 0)[0] == []
    pool.write(b"abcd")
    assert select.select([reader], [], [], 5)[0] == [reader]
    reader.next(0)
    with pytest.raises(tb.AgainError):
        reader.next(0)
    assert select.select([reader], [], [], 0)[0] == []
