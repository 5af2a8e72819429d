"""What is loaded and what leaves for it: admission, turns, residency, failures."""

import pytest

from gridcore.config.schema import Capability, Tier, Workload
from gridcore.core.events import (
    AdminAsked,
    AdminVerb,
    CancelCause,
    CardSampled,
    DrainBegun,
    FailureCause,
    FootprintMeasured,
    GatewayGone,
    GatewayRestated,
    JobCancelled,
    JobKind,
    JobSubmitted,
    KnownProfile,
    KnownRuntime,
    LoadFailed,
    Pressure,
    RunningLease,
    StepOutcome,
    SupervisorGone,
    SupervisorRestated,
)
from gridcore.core.settings import FamilySettings
from gridcore.ids import JobId, LeaseId, LoadId, ModelId, PeerId
from gridcore.units import GB, MB
from tests.support.builders import (
    CARD,
    GATEWAY,
    Brain,
    DispatchStep,
    LoadModel,
    RefuseJob,
    UnloadModel,
    kinds,
    model,
    seconds,
    settings,
    the,
)

BACKGROUND, BATCH = Workload.BACKGROUND, Workload.BATCH


def rivals(**policy: object) -> Brain:
    """Two models of 9 GB on a card of 16."""
    return Brain(settings(model("a", 9000), model("b", 9000), **policy))


def use(brain: Brain, model_id: str, workload: Workload = Workload.INTERACTIVE) -> None:
    brain.submit(model_id, workload)
    took_s = brain.state.models[model_id].settings.load_ns_estimate / 1e9
    brain.finish(the(brain.loaded(model_id, took_s=took_s), DispatchStep), took_s=0.1)


def fail(brain: Brain, model_id: str, cause: FailureCause, **more: object) -> list[object]:
    load_id = brain.state.models[ModelId(model_id)].load_id
    return list(
        brain.feed(LoadFailed(load_id=load_id, cause=cause, detail="last line", **more))  # type: ignore[arg-type]
    )


# --- making room ---------------------------------------------------------------------------


def test_a_model_that_fits_is_loaded_with_its_estimate_reserved() -> None:
    brain = rivals()
    load = the(brain.submit("a"), LoadModel)
    assert load.reserved_bytes == 9000 * MB
    assert brain.state.cards[CARD].ledger.reserved_bytes == 9000 * MB
    assert "a is loading" in str(brain.core.snapshot().jobs[0].reason)


def test_a_measured_footprint_replaces_the_estimate() -> None:
    brain = rivals()
    brain.submit("a")
    brain.loaded("a", mb=8500)
    assert brain.state.cards[CARD].ledger.reserved_bytes == 8500 * MB


def test_an_idle_hot_model_leaves_for_a_person() -> None:
    brain = rivals()
    use(brain, "a")
    assert kinds(brain.submit("b")) == ["UnloadModel"]
    load_id = brain.state.models["a"].load_id
    assert kinds(brain.exited(load_id)) == ["LoadModel"], "loaded when the memory is back"


def test_a_hot_model_never_leaves_for_background() -> None:
    brain = rivals()
    use(brain, "a")
    assert brain.submit("b", BACKGROUND) == []
    brain.wait(10)
    assert "a (hot)" in str(brain.core.snapshot().jobs[0].reason)
    out = brain.wait(300)
    assert kinds(out) == ["UnloadModel"], "it cools after hot_ttl"


def test_a_pinned_model_never_leaves_and_what_cannot_fit_beside_it_is_refused() -> None:
    """C29: at once, with numbers, and nothing is evicted for it."""
    brain = Brain(settings(model("p", 8000, pinned=True), model("d", 10000), model("c", 3000)))
    brain.loaded("p")
    use(brain, "c")
    refused = the(brain.submit("d"), RefuseJob)
    assert (refused.status, refused.code) == (400, "model_does_not_fit")
    assert "10000 MB" in refused.message
    assert "8384 MB" in refused.message
    assert "p pinned" in refused.message
    assert not brain.notes("evict")


def test_the_cheapest_set_leaves_not_the_first_that_fits() -> None:
    """One big model that is dear to reload stays; two cheap ones go."""
    brain = Brain(
        settings(
            model("dear", 6000, load_s=60),
            model("cheap1", 4000, load_s=1),
            model("cheap2", 4000, load_s=1),
            model("new", 9000),
        )
    )
    for model_id in ("dear", "cheap1", "cheap2"):
        use(brain, model_id)
    out = brain.submit("new")
    assert sorted(c.model_id for c in out if isinstance(c, UnloadModel)) == ["cheap1", "cheap2"]


def test_a_victim_with_a_running_step_is_drained_first() -> None:
    brain = rivals(restart=False)
    brain.submit("a", BACKGROUND)
    step = the(brain.loaded("a"), DispatchStep)
    assert brain.submit("b") == []
    assert brain.state.models["a"].phase == "draining"
    assert brain.submit("a", BACKGROUND) == [], "a draining model takes no more"
    assert kinds(brain.finish(step, took_s=3)) == ["UnloadModel"]


def test_a_drain_is_undone_when_the_one_it_was_for_leaves() -> None:
    brain = rivals(restart=False)
    brain.submit("a", BACKGROUND)
    brain.loaded("a")
    brain.submit("b", job_id="impatient")
    assert brain.state.models["a"].phase == "draining"
    brain.feed(JobCancelled(job_id=JobId("impatient"), cause=CancelCause.CLIENT_GONE))
    assert brain.state.models["a"].phase == "ready"


def test_no_lower_class_load_starts_while_a_person_waits_for_room() -> None:
    brain = Brain(settings(model("a", 9000), model("b", 9000), model("c", 3000)))
    use(brain, "a")
    brain.submit("b")
    assert brain.submit("c", BACKGROUND) == []
    brain.wait(5)
    assert not [n for n in brain.notes("load") if " c" in n]


def test_a_lower_class_load_is_taken_back_for_a_person_twice_at_most() -> None:
    brain = Brain(settings(model("a", 9000), model("b", 9000), interactive_turn=0))
    for _ in range(2):
        if not brain.state.jobs:
            the(brain.submit("a", BACKGROUND), LoadModel)
        out = brain.submit("b")
        assert the(out, UnloadModel).reason == "load_preempted"
        load_id = brain.state.models["a"].load_id
        fail(brain, "a", FailureCause.CANCELLED)
        assert load_id != brain.state.models["a"].load_id
        brain.finish(the(brain.loaded("b"), DispatchStep), took_s=0.1)
        brain.wait(400)  # b cools, a may be loaded again
        the(brain.exited(brain.state.models["b"].load_id), LoadModel)
    assert brain.submit("b") == [], "the third time it may finish"


def test_interactive_rivals_change_places_after_a_turn() -> None:
    """The resident model keeps serving while it has work, for interactive_turn at most."""
    brain = rivals()
    use(brain, "a")
    step = the(brain.submit("a"), DispatchStep)
    brain.submit("b")
    moved_at = None
    for second in range(20):
        brain.submit("a")
        out = brain.finish(step, took_s=1)
        if any(isinstance(command, UnloadModel) for command in out):
            moved_at = second
            break
        step = the(out, DispatchStep)
    assert moved_at is not None
    assert 9 <= moved_at <= 11


def test_background_rivals_take_turns_of_min_residency() -> None:
    brain = rivals()
    brain.submit("a", BACKGROUND)
    brain.finish(the(brain.loaded("a"), DispatchStep), took_s=0.1)
    assert brain.submit("b", BACKGROUND) == []
    assert brain.wait(29) == []
    assert "in use by background" in str(brain.core.snapshot().jobs[0].reason)
    assert kinds(brain.wait(2)) == ["UnloadModel"]


def test_without_min_residency_background_rivals_push_each_other_out() -> None:
    brain = rivals(min_residency=0)
    brain.submit("a", BACKGROUND)
    brain.finish(the(brain.loaded("a"), DispatchStep), took_s=0.1)
    assert kinds(brain.submit("b", BACKGROUND)) == ["UnloadModel"]


def test_a_model_that_keeps_coming_back_is_thrash_with_a_hint() -> None:
    brain = rivals(min_residency=0)
    for _ in range(6):
        for model_id in ("a", "b"):
            out = brain.submit(model_id, BACKGROUND)
            if kinds(out) == ["UnloadModel"]:
                brain.exited(the(out, UnloadModel).load_id)
            brain.finish(the(brain.loaded(model_id), DispatchStep), took_s=0.1)
    hints = brain.notes("thrash")
    assert len(hints) == 2, "once per model in five minutes"
    assert "a and b push each other out, 1616 MB are missing" in hints[0]
    assert "min_residency" in hints[0]


def test_a_resident_model_serves_while_another_loads() -> None:
    """C21."""
    brain = Brain(settings(model("a", 4000), model("b", 4000)))
    use(brain, "a")
    the(brain.submit("b"), LoadModel)
    the(brain.submit("a"), DispatchStep)


def test_a_small_embedder_evicts_nothing() -> None:
    """C47."""
    brain = Brain(settings(model("chat", 5500), model("embed", 700)), card_gb=8)
    use(brain, "chat")
    assert kinds(brain.submit("embed")) == ["LoadModel"]


def test_lru_evicts_the_longest_unused() -> None:
    brain = Brain(
        settings(
            model("old", 6000, load_s=100), model("new", 6000), model("c", 9000), eviction="lru"
        )
    )
    use(brain, "old")
    brain.wait(1)
    use(brain, "new")
    assert the(brain.submit("c"), UnloadModel).model_id == "old"


# --- failures ------------------------------------------------------------------------------


def test_out_of_memory_evicts_and_tries_once_more() -> None:
    """C45: the estimate was too low while another model was idle."""
    brain = Brain(settings(model("a", 8000), model("b", 7000)))
    use(brain, "a")
    the(brain.submit("b"), LoadModel)
    out = fail(brain, "b", FailureCause.OUT_OF_MEMORY, card_free_bytes=8384 * MB)
    unload = the(out, UnloadModel)  # type: ignore[arg-type]
    assert unload.model_id == "a"
    load = the(brain.exited(unload.load_id), LoadModel)
    assert load.reserved_bytes > 8384 * MB
    the(brain.loaded("b", mb=9000), DispatchStep)
    assert brain.state.models["b"].out_of_memory_at_bytes is None


def test_out_of_memory_with_nothing_to_evict_is_refused_up_front_from_then_on() -> None:
    brain = Brain(settings(model("b", 12000)))
    brain.submit("b")
    out = fail(brain, "b", FailureCause.OUT_OF_MEMORY, card_free_bytes=16 * GB)
    refused = the(out, RefuseJob)  # type: ignore[arg-type]
    assert refused.code == "model_does_not_fit"
    assert "ran out of memory with 16384 MB free" in refused.message
    assert kinds(brain.submit("b")) == ["RefuseJob"], "refused without a new attempt"


def test_a_failed_load_answers_those_who_waited_and_the_next_request_tries_again() -> None:
    """C25."""
    brain = rivals()
    brain.submit("a")
    for _ in range(2):
        refused = the(fail(brain, "a", FailureCause.CRASHED), RefuseJob)  # type: ignore[arg-type]
        assert (refused.status, refused.code) == (502, "model_load_failed")
        assert "last line" in refused.message
        assert kinds(brain.submit("a")) == ["LoadModel"]
    the(brain.loaded("a"), DispatchStep)


def test_repeated_failures_open_the_breaker_and_enable_closes_it() -> None:
    brain = rivals()
    for _ in range(3):
        brain.submit("a")
        fail(brain, "a", FailureCause.CRASHED)
    refused = the(brain.submit("a"), RefuseJob)
    assert (refused.status, refused.code) == (503, "model_unavailable")
    assert refused.retry_after_ns == seconds(30)
    assert "enable" in refused.message
    brain.feed(AdminAsked(request_id="r", peer=GATEWAY, verb=AdminVerb.ENABLE, target="a"))
    assert kinds(brain.submit("a")) == ["LoadModel"]


def test_a_half_open_breaker_lets_one_load_through_and_doubles_when_it_fails() -> None:
    brain = rivals()
    for _ in range(3):
        brain.submit("a")
        fail(brain, "a", FailureCause.CRASHED)
    brain.wait(31)
    assert kinds(brain.submit("a")) == ["LoadModel"]
    fail(brain, "a", FailureCause.CRASHED)
    assert the(brain.submit("a"), RefuseJob).retry_after_ns == seconds(60)


def test_a_crash_requeues_and_reloads() -> None:
    brain = rivals()
    use(brain, "a")
    step = the(brain.submit("a"), DispatchStep)
    brain.exited(step.load_id, cause=FailureCause.CRASHED, detail="SIGSEGV")
    assert kinds(brain.finish(step, outcome=StepOutcome.LOST)) == ["LoadModel"]
    assert the(brain.loaded("a"), DispatchStep).job_id == step.job_id


# --- cards ---------------------------------------------------------------------------------


def sample(brain: Brain, used_mb: int, **more: object) -> list[object]:
    brain.now_ns += seconds(0.5)
    return list(
        brain.feed(
            CardSampled(
                card_id=CARD,
                total_bytes=16 * GB,
                used_bytes=used_mb * MB,
                **more,  # type: ignore[arg-type]
            )
        )
    )


def test_foreign_memory_counts_only_when_seen_in_three_samples() -> None:
    """C46: a model that fits the empty card only waits, and starts when there is room again."""
    brain = Brain(settings(model("big", 14000)))
    for used_mb in (0, 0, 0, 5000):
        sample(brain, used_mb)
    assert brain.state.cards[CARD].budget_bytes() == 16 * GB
    for _ in range(2):
        sample(brain, 5000)
    assert brain.state.cards[CARD].budget_bytes() == 16 * GB - 5000 * MB
    assert brain.submit("big") == []
    assert "other programs hold 5000 MB" in str(brain.core.snapshot().jobs[0].reason)
    out = [command for _ in range(25) for command in sample(brain, 0)]
    assert kinds(out) == ["LoadModel"]  # type: ignore[arg-type]


def test_memory_that_does_not_come_back_is_waited_for_ten_seconds() -> None:
    """C27, third run: the load starts late, with a reason, not never."""
    brain = Brain(settings(model("a", 9000), model("b", 9000), frees_on_exit=False))
    for _ in range(3):
        sample(brain, 0)
    brain.submit("a")
    brain.finish(the(brain.loaded("a", mb=9000), DispatchStep))
    sample(brain, 9000)
    out = brain.submit("b")
    assert kinds(brain.exited(the(out, UnloadModel).load_id)) == ["SampleCard"]
    assert sample(brain, 9000) == []
    assert brain.wait(9) == []
    assert kinds(brain.wait(1)) == ["LoadModel"]
    assert "not seen free after 10 s" in brain.notes("unloaded")[-1]


def test_memory_that_is_back_is_not_waited_for() -> None:
    brain = Brain(settings(model("a", 9000), model("b", 9000), frees_on_exit=False))
    for _ in range(3):
        sample(brain, 0)
    brain.submit("a")
    brain.finish(the(brain.loaded("a", mb=9000), DispatchStep))
    sample(brain, 9000)
    out = brain.submit("b")
    brain.exited(the(out, UnloadModel).load_id)
    assert kinds(sample(brain, 10)) == ["LoadModel"]  # type: ignore[arg-type]


def test_a_footprint_beyond_its_reservation_evicts_cold_models_first() -> None:
    brain = Brain(settings(model("a", 8000), model("b", 6000)))
    use(brain, "b")
    brain.wait(400)
    use(brain, "a")
    load_id = brain.state.models["a"].load_id
    out = brain.feed(FootprintMeasured(load_id=load_id, footprint_bytes=11000 * MB))
    assert the(out, UnloadModel).model_id == "b"


def test_memory_pressure_holds_lower_classes_and_never_a_person() -> None:
    brain = Brain(settings(model("a", 4000), model("b", 4000)))
    brain.feed(CardSampled(card_id=CARD, total_bytes=16 * GB, pressure=Pressure.WARN))
    assert brain.submit("a", BACKGROUND) == []
    assert "memory pressure is warn" in str(brain.core.snapshot().jobs[0].reason)
    assert kinds(brain.submit("b")) == ["LoadModel"]


# --- pinned, idle, families, people --------------------------------------------------------


def test_pinned_models_are_loaded_at_start_one_after_the_other() -> None:
    brain = Brain(settings(model("p", pinned=True), model("q", pinned=True)))
    assert [n.split()[0] for n in brain.notes("load")] == ["load"]
    assert kinds(brain.loaded("p")) == ["LoadModel"]


def test_an_idle_model_leaves_after_its_ttl() -> None:
    brain = Brain(settings(model("a", ttl_ns=seconds(60))))
    use(brain, "a")
    assert brain.wait(59) == []
    assert kinds(brain.wait(2)) == ["UnloadModel"]


def gemma() -> Brain:
    family = FamilySettings(
        name="gemma",
        variants=(
            (Tier.PREFERRED, ModelId("12b")),
            (Tier.BALANCED, ModelId("e4b")),
            (Tier.COMPACT, ModelId("e2b")),
        ),
    )
    vision = [Capability.CHAT, Capability.VISION]
    models = (
        model("12b", 8500, capabilities=vision),
        model("e4b", 4100, capabilities=vision),
        model("e2b", 2900),
    )
    return Brain(settings(*models, families=[family]))


def test_a_person_gets_the_best_variant() -> None:
    brain = gemma()
    assert the(brain.submit("gemma"), LoadModel).model_id == "12b"
    assert the(brain.loaded("12b"), DispatchStep).model_id == "12b"


def test_background_gets_the_variant_that_disturbs_nothing() -> None:
    """Next to a busy 12B an ambient task lands on the E4B instead of waiting."""
    brain = gemma()
    brain.submit("gemma")
    step = the(brain.loaded("12b"), DispatchStep)
    brain.submit("gemma", BACKGROUND, needs=frozenset({Capability.VISION}))
    brain.finish(step)
    out = brain.wait(2.1)
    assert the(out, LoadModel).model_id == "e4b"
    assert the(brain.loaded("e4b"), DispatchStep).model_id == "e4b"
    assert "12b ready, hot" in brain.notes("variant")[-1]


def test_quality_excludes_the_tiers_below() -> None:
    brain = gemma()
    out = brain.submit("gemma", BACKGROUND, quality=Tier.PREFERRED)
    assert the(out, LoadModel).model_id == "12b"


def test_a_capability_no_variant_has_is_refused() -> None:
    brain = gemma()
    refused = the(brain.submit("gemma", needs=frozenset({Capability.AUDIO})), RefuseJob)
    assert (refused.status, refused.code) == (400, "no_variant")


def ask(brain: Brain, verb: AdminVerb, target: str) -> list[object]:
    return list(brain.feed(AdminAsked(request_id="r", peer=GATEWAY, verb=verb, target=target)))


def test_an_admin_load_acts_as_interactive() -> None:
    brain = rivals()
    use(brain, "a")
    assert kinds(ask(brain, AdminVerb.LOAD, "b")) == ["AnswerAdmin", "UnloadModel"]  # type: ignore[arg-type]
    brain.exited(brain.state.models["a"].load_id)
    brain.loaded("b")
    assert brain.state.models["b"].phase == "ready"


def test_an_admin_unload_drains_even_a_pinned_model_and_it_stays_away() -> None:
    brain = Brain(settings(model("p", pinned=True)))
    brain.loaded("p")
    step = the(brain.submit("p"), DispatchStep)
    assert kinds(ask(brain, AdminVerb.UNLOAD, "p")) == ["AnswerAdmin"]  # type: ignore[arg-type]
    out = brain.finish(step)
    brain.exited(the(out, UnloadModel).load_id)
    assert brain.wait(60) == []
    assert kinds(brain.submit("p")) == ["LoadModel"]


def test_the_end_refuses_what_waits_and_lets_run_what_runs() -> None:
    """C23."""
    brain = rivals()
    use(brain, "a")
    step = the(brain.submit("a"), DispatchStep)
    brain.submit("b")
    refused = the(brain.feed(DrainBegun()), RefuseJob)
    assert (refused.status, refused.code) == (503, "shutting_down")
    assert brain.finish(step) == []
    assert the(brain.submit("a"), RefuseJob).code == "shutting_down"
    assert ask(brain, AdminVerb.LOAD, "b")[0].status == 503  # type: ignore[attr-defined]


# --- re-statement --------------------------------------------------------------------------


def test_while_the_supervisor_is_away_ready_models_serve_and_loads_wait() -> None:
    brain = Brain(settings(model("a", 4000), model("b", 4000)))
    use(brain, "a")
    runtime = KnownRuntime(
        load_id=brain.state.models["a"].load_id,
        model_id=ModelId("a"),
        pid=100,
        address="unix:/a",
        slots=1,
        ready=True,
        stopping=False,
        idle_ns=0,
        footprint_bytes=None,
        reserved_bytes=0,
    )
    brain.feed(SupervisorGone())
    the(brain.submit("a"), DispatchStep)
    assert brain.submit("b") == []
    assert "supervisor is away" in str(brain.core.snapshot().jobs[-1].reason)
    out = brain.feed(SupervisorRestated(runtimes=(runtime,), profiles=()))
    assert kinds(out) == ["LoadModel"]


def test_a_new_epoch_keeps_places_slots_and_streams() -> None:
    """A scheduler that starts is told of a running step, a queued job and a runtime."""
    brain = Brain(settings(model("a", slots=1)))
    running = JobSubmitted(
        job_id=JobId("old"),
        gateway=GATEWAY,
        target="a",
        workload=Workload.INTERACTIVE,
        kind=JobKind.CHAT,
        waited_ns=seconds(9),
    )
    waiting = JobSubmitted(
        job_id=JobId("next"),
        gateway=GATEWAY,
        target="a",
        workload=Workload.INTERACTIVE,
        kind=JobKind.CHAT,
        waited_ns=seconds(5),
    )
    lease = RunningLease(
        lease_id=LeaseId("before-7"),
        job_id=JobId("old"),
        load_id=LoadId("before-1"),
        model_id=ModelId("a"),
        slots=(0,),
        first=0,
        count=1,
        ran_ns=seconds(4),
        answer_begun=True,
    )
    runtime = KnownRuntime(
        load_id=LoadId("before-1"),
        model_id=ModelId("a"),
        pid=7,
        address="unix:/before-1",
        slots=1,
        ready=True,
        stopping=False,
        idle_ns=0,
        footprint_bytes=3000 * MB,
        reserved_bytes=4000 * MB,
    )
    profile = KnownProfile(model_id=ModelId("a"), footprint_bytes=3000 * MB, load_ns=seconds(2))
    out = brain.feed(
        GatewayRestated(gateway=GATEWAY, jobs=(running, waiting), leases=(lease,)),
        SupervisorRestated(runtimes=(runtime,), profiles=(profile,)),
    )
    assert out == [], "the slot is taken by the stream that runs"
    assert brain.state.cards[CARD].ledger.reserved_bytes == 3000 * MB
    step = the(brain.finish(LeaseId("before-7"), took_s=1), DispatchStep)
    assert step.job_id == "next"
    assert step.waited_ns == seconds(6)
    assert step.address == "unix:/before-1"


def test_a_dead_gateway_takes_its_jobs_and_its_slots_cool() -> None:
    brain = rivals()
    use(brain, "a")
    the(brain.submit("a"), DispatchStep)
    brain.submit("a")
    brain.feed(GatewayGone(gateway=GATEWAY))
    assert not brain.state.jobs
    assert not brain.state.leases
    assert brain.state.models["a"].n_cooling == 1


def test_a_runtime_nobody_configured_is_stopped() -> None:
    brain = rivals()
    stranger = KnownRuntime(
        load_id=LoadId("x-1"),
        model_id=ModelId("stranger"),
        pid=7,
        address="unix:/x",
        slots=1,
        ready=True,
        stopping=False,
        idle_ns=0,
        footprint_bytes=None,
        reserved_bytes=0,
    )
    out = brain.feed(SupervisorRestated(runtimes=(stranger,), profiles=()))
    assert the(out, UnloadModel).load_id == "x-1"


@pytest.mark.parametrize("gateway", ["gateway-1"])
def test_only_the_dead_gateway_s_jobs_end(gateway: str) -> None:
    brain = rivals()
    use(brain, "a")
    the(brain.submit("a"), DispatchStep)
    brain.feed(GatewayGone(gateway=PeerId(gateway)))
    assert len(brain.state.jobs) == 1
