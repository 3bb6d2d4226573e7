"""Rules on what makes a daemon dial: whom, where, how often (spec 2.14, 2.17, 3, 4.17, 4.18, 5.22, 8.7, 8.12)."""

from __future__ import annotations

from tests.simulation.undoing_rules import Rule

LINKS, ORDERS = "chaos_protocols.links.liveness:LinkTable", "chaos_protocols.links.orders:LinkOrders"
DESIRED = "chaos_protocols.links.desired:DesiredLinks"
HEARD, RULES = "unit/daemon/test_neighbours.py", "unit/protocols"
LIVE, ORDERED = f"{RULES}/links/test_liveness.py", f"{RULES}/links/test_outsiders_reports.py"
PART, LATER = f"{RULES}/membership/test_participation.py", f"{RULES}/membership/test_later_start.py"

DIALS = (
    # -- how often
    Rule(
        "3.3",
        "dials again at once",
        f"{LINKS}._tick_link",
        "self._dials(neighbour) and now_s >= neighbour.retry_at_s",
        "self._dials(neighbour)",
        f"{LIVE}::test_a_wanted_neighbour_is_dialled_at_once_and_again_after_the_pause",
    ),
    Rule(
        "3.4",
        "dials who said goodbye",
        f"{LINKS}.link_lost",
        "if neighbour.goodbye:",
        "if False:",
        f"{LIVE}::test_a_neighbour_that_said_goodbye_is_not_redialled",
    ),
    Rule(
        "3.9",
        "dials whom it does not want",
        f"{LINKS}._dials",
        "neighbour.wanted and bool(neighbour.address)",
        "bool(neighbour.address)",
        f"{LIVE}::test_a_forgotten_neighbour_stays_while_it_is_up_and_is_not_dialled_again",
    ),
    Rule(
        "4.18",
        "dials who has to stay outside",
        "chaosd.driver:Driver._dial",
        "if refusal := self.conduct.why_not(site):",
        "if refusal := '':",
        f"{HEARD}::test_who_has_to_stay_outside_is_not_dialled_either",
    ),
    Rule(
        "4.17",
        "counts no link that it has dialled",
        "chaosd.driver:Driver._dial",
        "self.conduct.linked(site)",
        "pass",
        f"{HEARD}::test_links_that_this_site_dials_count_as_those_that_it_lets_in",
    ),
    Rule(
        "5.22",
        "asks who cannot show its votes as often as before",
        "chaos_protocols.membership.joining:Joining.unproven",
        "min(2 * wait_s, UNPROVEN_MAX_S)",
        "wait_s",
        f"{RULES}/membership/test_unproven.py::"
        "test_who_cannot_show_it_is_asked_ever_more_seldom_to_let_this_site_in_which_says_why",
    ),
    Rule(
        "8.12",
        "asks for a link for ever",
        f"{DESIRED}.ask",
        "if pending.tries > LINK_REQUEST_TRIES_MAX:",
        "if False:",
        f"{PART}::test_a_users_link_request_is_asked_again_and_answered_or_given_up",
    ),
    # -- whom, on another's word
    Rule(
        "8.7",
        "dials whom anybody names",
        f"{ORDERS}.ordered",
        "if not may_order or order.other == replica.site:",
        "if False:",
        f"{ORDERED}::test_a_member_that_does_not_schedule_orders_no_dials",
    ),
    Rule(
        "8.7",
        "dials for any number of orders",
        f"{ORDERS}.ordered",
        "while len(self._until_s) > LINK_ORDERS_MAX:",
        "while False:",
        f"{ORDERED}::test_orders_that_wait_for_their_links_are_few",
    ),
    Rule(
        "8.7",
        "remembers any number of orders",
        f"{ORDERS}.ordered",
        "while len(self._orders) > LINK_ORDERS_MAX:",
        "while False:",
        f"{PART}::test_orders_are_bounded_in_number_and_come_from_the_run_alone",
    ),
    Rule(
        "8.7",
        "dials what was ordered for ever",
        f"{ORDERS}.beat",
        "if self._outbox.now_s >= until_s",
        "if False",
        f"{ORDERED}::test_what_was_ordered_is_given_up_after_a_while",
    ),
    Rule(
        "2.14",
        "dials any site that says it knows a later start",
        f"{DESIRED}.told_of",
        "if known and report.up",
        "if report.up",
        f"{LATER}::test_a_site_that_never_was_in_the_run_is_not_dialled_for_its_word",
    ),
    # -- where
    Rule(
        "8.7",
        "dials where a joiner says that it listens",
        f"{ORDERS}.ordered",
        'if known is not None else ""',
        "if known is not None else order.address",
        f"{ORDERED}::test_the_address_that_a_joiner_says_of_itself_is_not_dialled_on_an_order",
    ),
    Rule(
        "2.17",
        "dials where a guest says that it listens",
        "chaosd.neighbours:Neighbours.may_name_hosts",
        "site in self._driver.machine.roster.site_ids()",
        "True",
        f"{HEARD}::test_only_a_site_of_the_run_is_believed_on_the_host_at_which_it_listens",
    ),
)
