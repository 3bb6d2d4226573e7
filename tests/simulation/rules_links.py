"""Rules on who gets a connection, who is dialled by whoever is cut off, and what may be asked beside rounds and states
(spec 2.7, 2.10, 3.10, 4.14), with the bounds of the transport's log and of what waits to be sent."""

from __future__ import annotations

from tests.simulation.undoing_rules import Rule

ADMISSION, LISTENER = "chaosd.transport.admission", "chaosd.transport.listener:Listener"
PROBE, METER = "chaosd.monitor.probe:LinkProbe", "chaosd.monitor.link_meter:LinkMeter"
VIEWS, MODELS = "chaosd.peer_view:PeerViews", "chaosd.model_check:ModelCheck"
STREAMS, QUEUE = "chaosd.bulk.streams:BulkStreams", "chaosd.bulk.send_queue:SendQueue"
REFUSALS = "chaosd.transport.refusals:RefusalLog"
DESIRED = "chaos_protocols.links.desired:DesiredLinks"
BACK = "chaos_protocols.membership.participation:Participation._look_for_a_way_back"
CLIENT = "chaos_protocols.membership.scheduler_client:SchedulerClient"
TOLD, CROWD = "unit/daemon/transport/test_admission.py", "unit/daemon/transport/test_listener.py"
LOGGED, QUEUED = "unit/daemon/transport/test_refusals.py", "unit/daemon/bulk/test_send_queue.py"
MEMBERS, ASKED = "unit/protocols/membership", "unit/daemon/test_bulk_streams.py"
CUT_OFF, LATER = f"{MEMBERS}/test_cut_off.py", f"{MEMBERS}/test_later_start.py"
MEASURED = "unit/daemon/monitor/test_link_meter.py"

LINKS = (
    # -- which connection is taken
    Rule(
        "2.7",
        "takes an older start of a neighbour",
        f"{ADMISSION}:_against_control",
        "if hello.incarnation < newest.incarnation:",
        "if False:",
        f"{TOLD}::test_incarnations_only_rise",
    ),
    Rule(
        "2.7",
        "knows no start by its link",
        f"{ADMISSION}:_against_control",
        "newest = Start(incarnation=link.incarnation)",
        "pass",
        f"{TOLD}::test_incarnations_only_rise",
    ),
    Rule(
        "2.7",
        "takes an older start than is known without a link",
        f"{ADMISSION}:_against_control",
        "link, newest = facts.link, facts.newest",
        "link, newest = facts.link, Start(incarnation=0)",
        f"{TOLD}::test_an_older_start_than_is_known_is_stale_without_a_link_too",
    ),
    Rule(
        "2.7",
        "takes an earlier attempt of the dialer",
        f"{ADMISSION}:_against_control",
        "elif hello.session.attempt <= link.session.attempt:",
        "elif False:",
        f"{TOLD}::test_an_attempt_that_arrives_out_of_order_is_stale",
    ),
    Rule(
        "2.7",
        "gives its own link up for a dial that did not know it",
        f"{ADMISSION}:_against_control",
        "if hello.known != link.session:",
        "if False:",
        f"{TOLD}::test_a_hello_written_before_the_link_was_known_is_a_straggler",
    ),
    Rule(
        "2.7",
        "refuses whoever has lost the link and dials again",
        f"{ADMISSION}:_against_control",
        "if hello.known != link.session:",
        "if True:",
        f"{TOLD}::test_a_redial_by_a_peer_that_knew_the_link_replaces_it",
    ),
    Rule(
        "2.7",
        "adds a stream to another start's link",
        f"{ADMISSION}:_against_bulk",
        "hello.incarnation != link.incarnation or ",
        "",
        f"{TOLD}::test_bulk_streams_belong_to_a_standing_link",
    ),
    Rule(
        "2.7",
        "adds a stream to another session's link",
        f"{ADMISSION}:_against_bulk",
        " or hello.session != link.session",
        "",
        f"{TOLD}::test_bulk_streams_belong_to_a_standing_link",
    ),
    Rule(
        "2.7",
        "adds streams beyond those of the link",
        f"{ADMISSION}:_against_bulk",
        "if hello.stream >= link.streams:",
        "if False:",
        f"{TOLD}::test_bulk_streams_belong_to_a_standing_link",
    ),
    # -- before anybody has proven who he is
    Rule(
        "2.10",
        "has any number of unproven connections",
        f"{LISTENER}._visit",
        "if len(self._visitors) >= HANDSHAKES_MAX:",
        "if False:",
        f"{CROWD}::test_so_many_connections_may_be_unproven_at_once",
    ),
    Rule(
        "2.10",
        "gives up the oldest connection at all",
        f"{LISTENER}._make_room",
        "if network == busiest",
        "if network",
        f"{CROWD}::test_the_oldest_of_the_busiest_address_gives_way",
    ),
    Rule(
        "2.10",
        "counts each address of an IPv6 network for itself",
        f"{LISTENER}._make_room",
        "network_of(connection.peer_host)",
        "connection.peer_host",
        f"{CROWD}::test_the_oldest_of_the_busiest_address_gives_way",
    ),
    Rule(
        "2.10",
        "waits for a proof for ever",
        f"{LISTENER}._too_slow",
        'connection.abort(f"no proof of identity within {self._settings.handshake_timeout_s:g} s")',
        "pass",
        f"{CROWD}::test_a_proof_that_is_not_there_in_time_ends_the_connection",
    ),
    # -- what an operator's log takes
    Rule(
        "16.1",
        "logs each attempt of a host that is refused",
        f"{REFUSALS}.tell",
        "if told_at_s is not None and now_s < told_at_s + REPEATED_S:",
        "if False:",
        f"{LOGGED}::test_a_site_that_knocks_twice_a_second_is_told_once_a_minute",
    ),
    Rule(
        "16.1",
        "logs any number of refusals",
        f"{REFUSALS}.tell",
        "if self._in_window > REFUSALS_LOGGED_PER_WINDOW:",
        "if False:",
        f"{LOGGED}::test_one_that_is_refused_in_another_way_each_time_fills_neither_the_log_nor_the_memory",
    ),
    Rule(
        "16.1",
        "remembers all that was logged of refusals",
        f"{REFUSALS}.tell",
        "if len(self._told_at_s) > REMEMBERED_MAX:",
        "if False:",
        f"{LOGGED}::test_one_that_is_refused_in_another_way_each_time_fills_neither_the_log_nor_the_memory",
    ),
    Rule(
        "16.1",
        "logs all of another's words",
        f"{REFUSALS}.tell",
        "reason[:REASON_CHARACTERS_MAX]",
        "reason",
        f"{LOGGED}::test_one_that_is_refused_in_another_way_each_time_fills_neither_the_log_nor_the_memory",
    ),
    # -- who is cut off
    Rule(
        "3.10",
        "looks for no way back",
        f"{DESIRED}.look_for_a_way_back",
        "elif outbox.now_s - self._linked_s > outbox.settings.cut_off_s:",
        "elif False:",
        f"{MEMBERS}/test_participation.py::test_a_cut_off_site_dials_any_site_it_knows_of",
    ),
    Rule(
        "3.10",
        "dials all sites the moment that it is cut off",
        f"{DESIRED}.look_for_a_way_back",
        "elif outbox.now_s - self._linked_s > outbox.settings.cut_off_s:",
        "else:",
        f"{CUT_OFF}::test_a_site_that_was_cut_off_for_a_moment_dials_its_neighbours_alone",
    ),
    Rule(
        "3.10",
        "dials all sites that it knows of",
        f"{DESIRED}.look_for_a_way_back",
        "in known.sites[:WAYS_BACK_MAX]:",
        "in known.sites:",
        f"{CUT_OFF}::test_a_site_that_is_cut_off_dials_a_number_of_those_that_it_knows",
    ),
    Rule(
        "3.10",
        "dials nobody that was removed as failed where nobody else is left",
        f"{DESIRED}.look_for_a_way_back",
        "if len(known.sites) == 1:",
        "if False:",
        f"{LATER}::test_who_has_nobody_else_in_its_roster_dials_those_that_failed_out_of_it",
    ),
    Rule(
        "3.10",
        "dials those that failed while others are left",
        f"{DESIRED}.look_for_a_way_back",
        "if len(known.sites) == 1:",
        "if True:",
        f"{CUT_OFF}::test_while_others_are_left_nobody_that_failed_is_dialled",
    ),
    Rule(
        "3.10",
        "remembers all that failed",
        f"{DESIRED}._note_failed",
        "or len(self._failed) > WAYS_BACK_MAX:",
        "or False:",
        f"{CUT_OFF}::test_of_those_that_failed_the_last_few_are_dialled_where_nobody_else_is_left",
    ),
    Rule(
        "3.10",
        "waits outside with a worker and dials nobody",
        BACK,
        "alone = waits_outside or",
        "alone =",
        f"{CUT_OFF}::test_who_waits_outside_with_a_worker_dials_the_sites_of_the_run",
    ),
    Rule(
        "3.10",
        "knows no leader and dials nobody",
        BACK,
        "or leaderless or",
        "or",
        f"{CUT_OFF}::test_who_knows_no_leader_dials_the_sites_of_the_run",
    ),
    Rule(
        "3.10",
        "takes a way over outsiders for one that counts",
        BACK,
        "or apart or",
        "or",
        f"{MEMBERS}/test_outsiders.py::"
        "test_a_site_that_hears_its_leader_by_way_of_outsiders_alone_dials_the_sites_of_the_run",
    ),
    Rule(
        "3.10",
        "leads voters that it reaches over outsiders alone and dials nobody",
        f"{CLIENT}.is_apart",
        "return len(reachable.intersection(voters)) < majority(len(voters))",
        "return False",
        f"{MEMBERS}/test_outsiders.py::test_a_leader_that_reaches_its_voters_by_way_of_outsiders_alone_dials_them",
    ),
    Rule(
        "3.10",
        "is left alone without the state and dials nobody",
        BACK,
        "or bereft or",
        "or",
        f"{LATER}::test_who_is_alone_without_the_state_dials_those_that_failed_whoever_else_is_linked_with_it",
    ),
    # -- beside rounds and states
    Rule(
        "4.14",
        "takes on stream 0 what is none of a round",
        f"{STREAMS}.received",
        "if stream == STREAM_AVERAGING:",
        "if False:",
        f"{ASKED}::test_stream_0_is_for_rounds_alone_and_the_others_for_all_else",
    ),
    Rule(
        "4.14",
        "keeps the payload of a ping",
        f"{STREAMS}.buffer",
        "if LinkProbe.is_probe(kind) or self.meter.is_ours(kind):",
        "if False:",
        f"{ASKED}::test_the_payload_of_a_measurement_is_forgotten",
    ),
    Rule(
        "4.14",
        "takes a burst of any length",
        f"{PROBE}._burst_arrived",
        "if len(burst.arrivals_s) > FRAMES_MAX:",
        "if False:",
        "unit/daemon/monitor/test_probe_answers.py::test_a_burst_that_does_not_end_breaks_a_rule",
    ),
    Rule(
        "4.14",
        "starts a program that this site does not measure with",
        f"{METER}._why_not",
        'if self._method != "iperf3":',
        "if False:",
        f"{MEASURED}::test_nobody_starts_a_program_here_but_a_site_of_the_run_where_it_is_configured",
    ),
    Rule(
        "4.14",
        "starts a program for a guest",
        f"{METER}._why_not",
        "if not self._is_of_run(site):",
        "if False:",
        f"{MEASURED}::test_nobody_starts_a_program_here_but_a_site_of_the_run_where_it_is_configured",
    ),
    Rule(
        "4.14",
        "starts a program as often as it is asked",
        f"{METER}._why_not",
        "if site in recent:",
        "if False:",
        f"{MEASURED}::test_a_site_of_the_run_starts_a_program_here_once_a_minute",
    ),
    Rule(
        "4.14",
        "starts several programs at once for one neighbour",
        f"{METER}.bulk_received",
        " and site not in self._serving",
        "",
        f"{MEASURED}::test_one_neighbour_is_answered_one_thing_at_a_time",
    ),
    Rule(
        "4.14",
        "describes its model as often as it is asked",
        f"{MODELS}.bulk_received",
        " and site not in self._telling",
        "",
        "unit/daemon/test_model_check.py::test_a_neighbour_is_told_one_description_at_a_time",
    ),
    Rule(
        "4.14",
        "takes a description that it has not asked for",
        f"{MODELS}.bulk_buffer",
        "site != self._asked or",
        "",
        "unit/daemon/test_model_check.py::test_only_a_description_that_was_asked_for_is_taken",
    ),
    Rule(
        "4.14",
        "says how a neighbour is seen as often as that asks",
        f"{VIEWS}.bulk_received",
        'now_s < self._answered_s.get(site, float("-inf")) + ANSWER_EVERY_S or',
        "",
        "unit/daemon/test_peer_view.py::test_a_question_is_answered_once_in_a_while_with_what_the_roster_says",
    ),
    # -- what waits to be sent
    Rule(
        "16.1",
        "has any number of frames wait for a neighbour that takes none",
        f"{QUEUE}.put",
        "lane.waiting >= FRAMES_QUEUED_MAX or",
        "",
        f"{QUEUED}::test_a_neighbour_that_takes_nothing_is_reported",
    ),
    Rule(
        "16.1",
        "has any number of bytes wait for a neighbour that takes none",
        f"{QUEUE}.put",
        "or lane.waiting_bytes > self.bytes_max",
        "",
        "integration/test_bulk_engines_results.py::"
        "test_a_neighbour_that_asks_and_does_not_take_has_no_memory_held_for_every_round",
    ),
)
