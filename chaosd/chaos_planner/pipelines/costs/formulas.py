"""The papers' closed forms, as printed: formulas 8 to 14 of Chameleon (Odyssey).

For comparison and for the papers' own settings; the planner decides by the exact times of `timeline`. Symbols: N_pp
stages, N_m micro-batches of a pipeline, N_dp pipelines, T_f and T_b forward and backward seconds of one micro-batch on
one stage, F_i failed workers in stage i, L_i layers of stage i, m_p, m_o, m_g, m_a bytes per layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos_planner.pipelines.facts.checks import refuse


def throughput_objective(batch: float, step_s: float, transition_s: float, up_s: float) -> float:
    """Formula 8: samples per second over the time between two faults, (B / t_step) t_up / (t_transition + t_up)."""
    if step_s <= 0:
        raise refuse("step_s", step_s, "a number above 0")
    if up_s <= 0:
        return 0.0
    return batch / step_s * (up_s / (transition_s + up_s))


def symmetric_step_s(stages: int, micro_batches: int, forward_s: float, backward_s: float) -> float:
    """Formula 9: (N_pp + N_m - 1)(T_f + T_b)."""
    return (stages + micro_batches - 1) * (forward_s + backward_s)


def slowest_pipeline_s(pipeline_s: Sequence[float]) -> float:
    """Formula 10: max over the pipelines of t_p."""
    if not pipeline_s:
        raise refuse("pipeline_s", pipeline_s, "the times of at least one pipeline")
    return max(pipeline_s)


def asymmetric_pipeline_s(forward_s: Sequence[float], backward_s: Sequence[float], micro_batches: int) -> float:
    """t_p of formula 10, by the dynamic programme of formula 11 over 1F1B with one T_f and T_b per stage.

    start(i, j) = max(end(i, j - 1), end(f1(i), f2(j))): j counts the passes of stage i in 1F1B order; f1 is i - 1 for a
    forward and i + 1 for a backward pass; f2 is the place of the same micro-batch's pass there.
    """
    stages = len(forward_s)
    if stages == 0 or len(backward_s) != stages or micro_batches < 1:
        raise refuse("stages", (stages, len(backward_s), micro_batches), "T_f and T_b per stage, a micro-batch or more")
    place = _places(stages, micro_batches)
    ends = [[-1.0] * (2 * micro_batches) for _ in range(stages)]
    at = [0] * stages
    orders = [sorted(place[i], key=place[i].__getitem__) for i in range(stages)]
    left = 2 * micro_batches * stages
    while left:
        for i in range(stages):
            while at[i] < 2 * micro_batches:
                forward, m = orders[i][at[i]]
                before = _depended_end(ends, place, i, forward, m, stages)
                if before < 0:
                    break
                start = max(ends[i][at[i] - 1] if at[i] else 0.0, before)
                ends[i][at[i]] = start + (forward_s[i] if forward else backward_s[i])
                at[i] += 1
                left -= 1
    return max(line[-1] for line in ends)


def rerouted_step_s(
    stages: int, micro_batches: int, pipelines: int, failed: Sequence[int], forward_s: float, backward_s: float
) -> float:
    """Formula 13: (N_pp + N_m - 1 + sum_i N_m F_i / (N_dp - F_i))(T_f + T_b), for 0 <= F_i < N_dp.

    With one failure the sum is N_m / (N_dp - 1): formula 12.
    """
    for stage, count in enumerate(failed):
        if not 0 <= count < pipelines:
            raise refuse(
                f"failed workers in stage {stage}", count, f"0 to {pipelines - 1}, or the policy dynamic instead"
            )
    more = sum(micro_batches * count / (pipelines - count) for count in failed)
    return (stages + micro_batches - 1 + more) * (forward_s + backward_s)


def single_failure_step_s(
    stages: int, micro_batches: int, pipelines: int, forward_s: float, backward_s: float
) -> float:
    """Formula 12: (N_pp + N_m - 1 + N_m / (N_dp - 1))(T_f + T_b)."""
    if pipelines < 2:
        raise refuse("pipelines", pipelines, "2 or more, so that a peer holds the lost stage")
    return (stages + micro_batches - 1 + micro_batches / (pipelines - 1)) * (forward_s + backward_s)


def stage_memory_bytes(
    *,
    stages: int,
    stage: int,
    layers: int,
    parameter_bytes: float,
    optimizer_bytes: float,
    gradient_bytes: float,
    activation_bytes: float,
) -> float:
    """Formula 14: L_i (m_p + m_o + m_g) + (N_pp - i) L_i m_a, stage i counted from 0."""
    static = layers * (parameter_bytes + optimizer_bytes + gradient_bytes)
    return static + (stages - stage) * layers * activation_bytes


def _places(stages: int, micro_batches: int) -> list[dict[tuple[bool, int], int]]:
    """Per stage the place of every pass: N_pp - i - 1 forward passes, then one of each in turn, then backward."""
    places = []
    for i in range(stages):
        warm_up = min(micro_batches, stages - i - 1)
        order: list[tuple[bool, int]] = [(True, m) for m in range(warm_up)]
        for m in range(micro_batches):
            if warm_up + m < micro_batches:
                order.append((True, warm_up + m))
            order.append((False, m))
        places.append({item: j for j, item in enumerate(order)})
    return places


def _depended_end(
    ends: list[list[float]], place: list[dict[tuple[bool, int], int]], i: int, forward: bool, m: int, stages: int
) -> float:
    """end(f1(i), f2(j)); 0 where nothing is depended on, negative where it is not known yet."""
    if forward:
        return ends[i - 1][place[i - 1][True, m]] if i > 0 else 0.0
    return ends[i + 1][place[i + 1][False, m]] if i + 1 < stages else ends[i][place[i][True, m]]
