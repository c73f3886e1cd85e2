"""Shares, turns, upload memory and places between tenants: what one takes never leaves another without."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from kvcairn_service.crowd import Crowd
from kvcairn_service.fairness import Turns, is_within_share
from kvcairn_service.memory import MemoryBudget


def fill(held, tenant, limit):
    """Take one at a time for as long as it is allowed."""
    while is_within_share(1, tenant=tenant, held=held, limit=limit):
        held[tenant] += 1


class TestShares:
    """Of a limit, for tenants that each take as much as they get."""

    def test_one_that_takes_all_it_can_leaves_a_quarter_to_whoever_comes(self):
        held = Counter()
        fill(held, "a", 256)
        assert held == {"a": 192}
        fill(held, "b", 256)
        assert held == {"a": 192, "b": 64}

    @pytest.mark.parametrize("tenants", [2, 3, 5, 11])
    def test_tenants_that_keep_asking_end_up_with_a_share_each(self, tenants):
        """One has taken all it can; whatever comes back is asked for again, in any order."""
        rng, held = random.Random(tenants), Counter()
        names = [f"tenant {number}" for number in range(tenants)]
        fill(held, names[0], 256)
        for _ in range(5000):
            gone = rng.choice([name for name in held if held[name]])
            held[gone] -= 1
            for name in rng.sample(names, tenants):
                if is_within_share(1, tenant=name, held=held, limit=256):
                    held[name] += 1
        assert held.total() <= 256
        assert min(held[name] for name in names) >= 256 // (tenants + 1) * 3 // 4

    def test_what_is_larger_than_a_share_goes_to_one_that_holds_nothing(self):
        assert is_within_share(64, tenant="b", held={"a": 76}, limit=140)
        assert not is_within_share(64, tenant="a", held={"a": 64}, limit=140)

    def test_nobody_ever_takes_more_than_there_is(self):
        assert not is_within_share(1, tenant="b", held={"a": 4}, limit=4)
        assert not is_within_share(5, tenant="a", held={}, limit=4)


def served(turns, asking):
    """Let each of `asking`, in order, do one piece of work; who did, in what order, with the first held back."""

    async def scenario():
        order, gate = [], asyncio.Event()

        async def work(tenant):
            async with turns.of(tenant):
                order.append(tenant)
                await gate.wait()

        tasks = [asyncio.create_task(work(tenant)) for tenant in asking]
        await asyncio.sleep(0)
        begun = list(order)
        gate.set()
        await asyncio.gather(*tasks)
        assert turns.waiting == 0
        return begun, order

    return asyncio.run(scenario())


class TestTurns:
    """Places for short work."""

    def test_one_of_another_tenant_comes_before_the_rest_of_a_crowd(self):
        begun, order = served(Turns(1), ["a"] * 20 + ["b", "c"])
        assert begun == ["a"]
        assert order[1:3] == ["b", "c"]

    def test_tenants_take_turns_however_many_each_has_waiting(self):
        _, order = served(Turns(1), ["a"] * 50 + ["b"] * 5 + ["c"] * 5)
        assert Counter(order[:16])["b"] == Counter(order[:16])["c"] == 5

    def test_a_moment_is_one_tenants_until_the_loop_has_gone_round(self):
        """So of many that ask at once each waits for a few of its own, and for one of every other tenant's."""

        async def scenario():
            turns, order, loop_rounds = Turns(1), [], 0

            async def ask(tenant):
                await turns.moment(tenant)
                order.append((tenant, loop_rounds))

            tasks = [asyncio.create_task(ask(tenant)) for tenant in ["a"] * 20 + ["b"] * 2]
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                loop_rounds += 1
            assert [tenant for tenant, _ in order[:5]] == ["a", "b", "a", "b", "a"]
            assert len({moment for _, moment in order}) == len(order), "never two in one round"
            assert turns.waiting == 0

        asyncio.run(scenario())

    def test_a_spare_place_is_for_a_tenant_that_has_none(self):
        begun, _ = served(Turns(4, spare=1), ["a"] * 10)
        assert begun == ["a"] * 3
        begun, _ = served(Turns(4, spare=1), ["a"] * 10 + ["b"])
        assert sorted(begun) == ["a"] * 3 + ["b"]

    def test_places_are_never_more_than_there_are_whoever_gives_up(self):
        async def scenario():
            turns, rng, inside, most = Turns(3), random.Random(1), 0, 0

            async def work(tenant):
                nonlocal inside, most
                async with turns.of(tenant):
                    inside += 1
                    most = max(most, inside)
                    try:
                        await asyncio.sleep(rng.random() / 1000)
                    finally:
                        inside -= 1

            tasks = [asyncio.create_task(work(rng.choice("abc"))) for _ in range(300)]
            for task in rng.sample(tasks, 150):
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert most == 3
            assert (turns.waiting, inside) == (0, 0)
            async with AsyncExitStack() as stack:
                for tenant in "abc":
                    await asyncio.wait_for(stack.enter_async_context(turns.of(tenant)), 5)

        asyncio.run(scenario())

    def test_one_that_gives_up_the_place_it_just_got_passes_it_on(self):
        async def scenario():
            turns = Turns(1)

            async def work():
                async with turns.of("a"):
                    await asyncio.sleep(10)

            first, second, third = (asyncio.create_task(work()) for _ in range(3))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            await asyncio.sleep(0)
            assert turns.waiting == 0, "the third has it"
            third.cancel()
            await asyncio.gather(third, return_exceptions=True)

        asyncio.run(scenario())


class TestUploadMemory:
    """Of 640 bytes: small up to 20, reserve 80, large ones have 560 together."""

    def test_a_tenant_whose_large_uploads_are_slow_leaves_room_for_anothers(self):
        async def scenario():
            budget = MemoryBudget(640, is_shared=lambda: True)
            while budget.try_acquire(64, tenant="slow"):
                pass
            assert budget.used_bytes == 384
            assert [budget.try_acquire(64, tenant="other") for _ in range(3)] == [True, True, False]

        asyncio.run(scenario())

    def test_alone_a_tenant_has_all_of_it(self):
        budget = MemoryBudget(640, is_shared=lambda: False)
        while budget.try_acquire(64, tenant="only"):
            pass
        assert budget.used_bytes == 512

    def test_the_largest_record_is_lent_to_a_tenant_that_has_nothing(self):
        budget = MemoryBudget(640, is_shared=lambda: True)
        assert budget.try_acquire(256, tenant="a")
        assert not budget.try_acquire(256, tenant="a")
        assert budget.try_acquire(256, tenant="b")

    def test_what_comes_free_goes_to_the_tenant_that_has_least(self):
        async def scenario():
            budget, order = MemoryBudget(640, is_shared=lambda: True), []
            for _ in range(6):
                assert budget.try_acquire(64, tenant="a")
            assert budget.try_acquire(128, tenant="b")

            async def take(tenant):
                await budget.acquire(128, tenant=tenant)
                order.append(tenant)
                await asyncio.sleep(0)
                budget.release(128, tenant=tenant)

            tasks = [asyncio.create_task(take(tenant)) for tenant in ("a", "a", "b", "c")]
            await asyncio.sleep(0)
            for _ in range(6):
                budget.release(64, tenant="a")
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            assert order[0] == "c"
            assert sorted(order) == ["a", "a", "b", "c"]
            assert budget.used_bytes == 128, "what b had before"

        asyncio.run(scenario())

    def test_of_two_that_could_have_it_the_one_that_has_less_does_though_it_came_later(self):
        async def scenario():
            budget, order = MemoryBudget(640), []
            for tenant in ["b"] * 7 + ["a"]:
                assert budget.try_acquire(64, tenant=tenant)

            async def take(tenant):
                await budget.acquire(64, tenant=tenant)
                order.append(tenant)

            tasks = [asyncio.create_task(take(tenant)) for tenant in ("a", "c")]
            for _ in range(2):
                await asyncio.sleep(0)
                budget.release(64, tenant="b")
            await asyncio.gather(*tasks)
            assert order == ["c", "a"]

        asyncio.run(scenario())

    def test_nothing_is_lent_twice_and_all_comes_back_whoever_gives_up(self):
        async def scenario():
            budget, rng = MemoryBudget(640, is_shared=lambda: True), random.Random(2)

            async def upload(tenant):
                for size_bytes in rng.choices([8, 16, 64, 200, 256], k=4):
                    await budget.acquire(size_bytes, tenant=tenant)
                    try:
                        assert budget.used_bytes <= 640
                        await asyncio.sleep(rng.random() / 1000)
                    finally:
                        budget.release(size_bytes, tenant=tenant)

            tasks = [asyncio.create_task(upload(rng.choice("abc"))) for _ in range(200)]
            for task in rng.sample(tasks, 60):
                await asyncio.sleep(0)
                task.cancel()
            done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
            assert all(each is None or isinstance(each, asyncio.CancelledError) for each in done)
            assert (budget.used_bytes, budget.waiting) == (0, 0)

        asyncio.run(scenario())


@dataclass(eq=False)
class Guest:
    """A connection as the crowd sees it."""

    is_answering: bool = False
    is_receiving: bool = False


class TestCrowd:
    """Who goes when there are too many."""

    def test_strangers_go_first_those_that_came_first_before_the_others(self):
        crowd, tenants, strangers = Crowd(4), [Guest(), Guest()], [Guest(), Guest()]
        for guest in (*tenants, *strangers):
            assert crowd.join(guest) is None
        for guest in tenants:
            crowd.recognise(guest, "t")
        assert crowd.join(newest := Guest()) is strangers[0]
        assert crowd.join(Guest()) is strangers[1]
        assert crowd.join(Guest()) is newest
        assert len(crowd) == 4

    def test_with_no_stranger_the_one_that_is_idle_longest_of_the_tenant_that_has_most_goes(self):
        crowd, few, many = Crowd(5), [Guest()], [Guest() for _ in range(4)]
        for guest in (*few, *many):
            crowd.join(guest)
            crowd.recognise(guest, "few" if guest in few else "many")
        crowd.recognise(many[0], "many")
        many[1].is_receiving = True
        assert crowd.join(Guest()) is many[2]

    def test_who_is_answered_stays_and_then_the_newcomer_is_refused(self):
        crowd = Crowd(2)
        for tenant in ("t", None):
            crowd.join(guest := Guest(is_answering=True))
            if tenant:
                crowd.recognise(guest, tenant)
        assert crowd.join(newcomer := Guest()) is newcomer
        assert (len(crowd), crowd.refused, crowd.made_way) == (2, 1, 0)

    def test_a_flood_of_strangers_never_takes_a_tenants_place(self):
        crowd, tenants = Crowd(50), [Guest() for _ in range(20)]
        for guest in tenants:
            crowd.join(guest)
            crowd.recognise(guest, "t")
        gone = [crowd.join(Guest()) for _ in range(1000)]
        assert not set(tenants) & set(gone)
        assert len(crowd) == 50

    def test_one_that_left_is_counted_no_more_and_cannot_be_recognised(self):
        crowd, guest = Crowd(1), Guest()
        crowd.join(guest)
        crowd.leave(guest)
        crowd.recognise(guest, "t")
        assert len(crowd) == 0
        assert crowd.join(Guest()) is None
