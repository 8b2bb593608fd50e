"""What the launcher and the roles of a job on Ray tell each other, in one event loop and without Ray."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from monolith.launch.ray_launcher import JobActor


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, timeout=60.0))


async def settle() -> None:
    """Lets every call go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_an_incarnation_starts_when_the_launcher_allows_it() -> None:
    async def story() -> None:
        job = JobActor()
        begins = asyncio.create_task(job.start("ps 0", "first"))
        assert await job.next_news() == [("started", "ps 0", "first")]
        await job.allow("ps 0", "another life")
        await settle()
        assert not begins.done()
        await job.allow("ps 0", "first")
        await begins

    run(story())


def test_a_start_that_is_repeated_after_it_was_allowed_does_not_wait() -> None:
    async def story() -> None:
        job = JobActor()
        await job.allow("ps 0", "first")
        await job.start("ps 0", "first")
        assert await job.next_news() == [("started", "ps 0", "first")]

    run(story())


def test_news_come_in_their_order_and_once() -> None:
    async def story() -> None:
        job = JobActor()
        waiting = asyncio.create_task(job.next_news())
        await settle()
        await job.tell("worker 0", {"done": 1})
        await job.tell("worker 1", {"done": 2})
        news = await waiting + ([] if waiting.result()[1:] else await job.next_news())
        assert news == [("message", "worker 0", {"done": 1}), ("message", "worker 1", {"done": 2})]

    run(story())


def test_a_signal_sent_before_a_process_listens_is_delivered_to_the_first_listener() -> None:
    async def story() -> None:
        job = JobActor()
        sends = asyncio.create_task(job.send("ps 0", signal.SIGTERM))
        await settle()
        assert not sends.done(), "it has arrived when somebody has taken it"
        assert await job.next_signal("ps 0", "first") == signal.SIGTERM
        await sends

    run(story())


def test_the_dead_take_no_signals_of_the_living() -> None:
    async def story() -> None:
        job = JobActor()
        dead = asyncio.create_task(job.next_signal("ps 0", "first"))
        await settle()
        lives = asyncio.create_task(job.next_signal("ps 0", "second"))
        assert await dead is None
        await job.send("ps 0", signal.SIGINT)
        assert await lives == signal.SIGINT

    run(story())


def test_signals_of_one_role_are_not_those_of_another() -> None:
    async def story() -> None:
        job = JobActor()
        other = asyncio.create_task(job.next_signal("ps 1", "life"))
        sends = asyncio.create_task(job.send("ps 0", signal.SIGTERM))
        await settle()
        assert not other.done()
        assert not sends.done()
        other.cancel()
        sends.cancel()

    run(story())


def test_the_end_leaves_no_call_of_the_launcher_waiting() -> None:
    async def story() -> None:
        job = JobActor()
        waiting = [asyncio.create_task(job.next_news()), asyncio.create_task(job.send("ps 0", signal.SIGTERM))]
        await settle()
        await job.end()
        assert await asyncio.gather(*waiting) == [[], None]

    run(story())
