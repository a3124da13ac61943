//! The limiter by itself: what it keeps, what it drops, and what threads do to it at once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use waybill_kernel::id::Uuid;
use waybill_kernel::{Principal, PrincipalKind, Roles, Scopes};

use super::bucket::IDLE;
use super::known::{OUTRANKS, TRUSTED};
use super::*;
use crate::rules::attributes::Attributes;
use crate::rules::throttle::Throttle;

const NOW: Time = Time::from_micros(1_700_000_000_000_000);
const OURS: Tenant = Tenant(1);

fn caller(tenant: i64) -> Caller {
    Caller {
        tenant: Tenant(tenant),
        tenant_id: Uuid::from_u128(u128::try_from(tenant).unwrap()),
        principal: Principal::new(PrincipalKind::Agent, "a").unwrap(),
        roles: Roles::default(),
        scopes: Scopes::default(),
        key: None,
    }
}

fn truth(incarnation: i64, pairs: &[(&str, &str)]) -> Truth {
    let named = pairs.iter().map(|(name, value)| (format!("Throttle{name}"), (*value).to_owned())).collect();
    let throttle = Throttle::of(&Attributes::checked("jobs", &named).unwrap()).unwrap();
    Truth { incarnation, version: 0, throttle, message_bytes_max: 1_024, read_at: NOW }
}

/// Ten sends, and one more each second.
fn ten() -> Truth {
    truth(1, &[("SendCapacity", "10"), ("SendRefillPerSecond", "1")])
}

/// A limiter that has learnt of a queue with ten sends.
fn limiter() -> (Limiter, Arc<Known>) {
    let limiter = Limiter::default();
    limiter.learn(&caller(1), "jobs", ten());
    let known = limiter.known(OURS, "jobs").unwrap();
    (limiter, known)
}

impl Limiter {
    fn send(&self, known: &Known, tokens: u32, now: Time) -> Decision {
        self.0.buckets.take(known, known.throttle.bucket(Action::Send).unwrap(), tokens, now)
    }

    /// By what is known now.
    fn send_one(&self, now: Time) -> Decision {
        let known = self.known(OURS, "jobs").unwrap();
        self.send(&known, 1, now)
    }

    fn shown(&self) -> String {
        let mut text = String::new();
        self.write_figures(&mut text);
        text
    }
}

const REFUSED: Decision = Decision::Refused { retry_after_s: 1 };

#[test]
fn rule_01_without_a_throttle_nothing_is_remembered_and_nothing_allocated() {
    let limiter = Limiter::default();
    assert!(limiter.known(OURS, "jobs").is_none());
    limiter.learn(&caller(1), "jobs", truth(1, &[]));
    assert!(limiter.known(OURS, "jobs").is_none());
    assert_eq!((limiter.0.memory.len(), limiter.0.buckets.readings().len(), limiter.shown()), (0, 0, String::new()));
}

#[test]
fn rule_11_a_bucket_is_of_one_tenant_queue_action_and_incarnation() {
    let limiter = Limiter::default();
    let throttle = |incarnation| {
        let send = [("SendCapacity", "10"), ("SendRefillPerSecond", "1")];
        truth(incarnation, &[send, [("RecvCapacity", "10"), ("RecvRefillPerSecond", "1")]].concat())
    };
    let mut all = Vec::new();
    for (tenant, queue, incarnation) in [(1, "jobs", 1), (2, "jobs", 1), (1, "other", 1)] {
        limiter.learn(&caller(tenant), queue, throttle(incarnation));
        all.push(limiter.known(Tenant(tenant), queue).unwrap());
    }
    for known in &all {
        for action in [Action::Send, Action::Receive] {
            let bucket = known.throttle.bucket(action).unwrap();
            assert_eq!(limiter.0.buckets.take(known, bucket, 10, NOW), Decision::Taken, "{known:?} {action:?}");
            assert_eq!(limiter.0.buckets.take(known, bucket, 1, NOW), REFUSED, "{known:?} {action:?}");
        }
    }
    assert_eq!(limiter.0.buckets.readings().len(), 6);
}

#[test]
fn rule_12_another_incarnation_has_a_full_bucket_and_the_old_ones_are_gone() {
    let (limiter, first) = limiter();
    assert_eq!(limiter.send(&first, 10, NOW), Decision::Taken);
    limiter.learn(&caller(1), "jobs", Truth { incarnation: 2, ..ten() });
    assert_eq!(limiter.send(&first, 1, NOW), Decision::Outdated, "the old memory decides nothing any more");
    let second = limiter.known(OURS, "jobs").unwrap();
    assert_eq!(limiter.send(&second, 10, NOW), Decision::Taken);
    assert_eq!(limiter.0.buckets.readings().len(), 1);
}

#[test]
fn rule_13_a_bucket_of_another_configuration_is_rebuilt_full_and_one_of_the_same_is_kept() {
    let (limiter, _) = limiter();
    for _ in 0..10 {
        assert_eq!(limiter.send_one(NOW), Decision::Taken);
    }
    // Learnt again, unchanged: as after a start of the memory alone.
    limiter.learn(&caller(1), "jobs", ten());
    assert_eq!(limiter.send_one(NOW), REFUSED);
    let receive = [("RecvCapacity", "10"), ("RecvRefillPerSecond", "1")];
    limiter.learn(
        &caller(1),
        "jobs",
        truth(1, &[[("SendCapacity", "10"), ("SendRefillPerSecond", "1")], receive].concat()),
    );
    assert_eq!(limiter.send_one(NOW), REFUSED, "the pair of sends is as it was");
    let other = truth(1, &[("SendCapacity", "10"), ("SendRefillPerSecond", "2")]);
    limiter.learn(&caller(1), "jobs", other);
    assert_eq!(limiter.send_one(NOW), Decision::Taken);
    // And where the bucket itself is found to be of another configuration.
    let known = limiter.known(OURS, "jobs").unwrap();
    let larger = (Action::Send, Rate { capacity: 20.0, per_second: 2.0 });
    assert_eq!(limiter.0.buckets.take(&known, larger, 20, NOW), Decision::Taken);
    assert_eq!(limiter.0.buckets.take(&known, larger, 1, NOW), REFUSED);
}

/// Two stores of which one has not followed a change yet, and a transaction that began before it.
#[test]
fn rule_13_an_older_reading_fills_no_bucket() {
    let old = || Truth { version: 1, ..ten() };
    let new = || Truth { version: 2, ..truth(1, &[("SendCapacity", "20"), ("SendRefillPerSecond", "1")]) };
    let none = || Truth { version: 1, ..truth(1, &[]) };
    let (limiter, _) = limiter();
    limiter.learn(&caller(1), "jobs", old());
    limiter.learn(&caller(1), "jobs", new());
    let known = limiter.known(OURS, "jobs").unwrap();
    assert_eq!(limiter.send(&known, 20, NOW), Decision::Taken);
    for _ in 0..3 {
        for reading in [old(), none(), new(), Truth { incarnation: 0, version: 9, ..old() }] {
            limiter.learn(&caller(1), "jobs", reading);
            assert_eq!(limiter.send_one(NOW), REFUSED, "{reading:?}");
        }
    }
    assert!(known.outranks(&old()) && known.outranks(&none()) && !known.outranks(&new()));
    // A purge changes neither of the two, and another attribute the version alone: then older ones are still older.
    known.confirm(&Truth { version: 5, ..new() });
    limiter.learn(&caller(1), "jobs", Truth { version: 4, ..old() });
    assert_eq!(limiter.send_one(NOW), REFUSED);
    // Later ones count.
    limiter.learn(&caller(1), "jobs", Truth { version: 6, ..old() });
    assert_eq!(limiter.send_one(NOW), Decision::Taken);
    limiter.learn(&caller(1), "jobs", Truth { version: 7, ..none() });
    assert!(limiter.known(OURS, "jobs").is_none());
}

#[test]
fn rule_13_what_the_database_says_for_long_is_true_though_it_is_older() {
    let (limiter, _) = limiter();
    limiter.learn(&caller(1), "jobs", Truth { version: 5, ..ten() });
    let lost =
        |read_at| Truth { version: 4, read_at, ..truth(1, &[("SendCapacity", "20"), ("SendRefillPerSecond", "1")]) };
    let capacity =
        |limiter: &Limiter| limiter.known(OURS, "jobs").unwrap().throttle.bucket(Action::Send).unwrap().1.capacity;
    limiter.learn(&caller(1), "jobs", lost(NOW.after(OUTRANKS)));
    assert!((capacity(&limiter) - 10.0).abs() < f64::EPSILON);
    limiter.learn(&caller(1), "jobs", lost(NOW.after(OUTRANKS + Duration::from_micros(1))));
    assert!((capacity(&limiter) - 20.0).abs() < f64::EPSILON);
}

#[test]
fn rule_14_whoever_has_read_the_queue_before_a_change_does_not_bring_its_old_bucket_back() {
    let (limiter, _) = limiter();
    assert_eq!(limiter.send_one(NOW), Decision::Taken);
    let new = Truth { version: 1, ..truth(1, &[("SendCapacity", "20"), ("SendRefillPerSecond", "1")]) };
    limiter.changed(&caller(1), "jobs", new);
    limiter.learn(&caller(1), "jobs", ten());
    let known = limiter.known(OURS, "jobs").unwrap();
    assert!(known.is(&new));
    assert_eq!(limiter.send(&known, 20, NOW), Decision::Taken, "a change finds full buckets");
    // Told twice, and told late.
    limiter.changed(&caller(1), "jobs", new);
    limiter.changed(&caller(1), "jobs", ten());
    assert_eq!(limiter.send_one(NOW), REFUSED);
    limiter.changed(&caller(1), "jobs", Truth { version: 2, ..truth(1, &[]) });
    assert!(limiter.known(OURS, "jobs").is_none());
}

#[test]
fn rule_13_a_bucket_that_was_left_alone_accrues_for_the_time_away() {
    let (limiter, known) = limiter();
    assert_eq!(limiter.send(&known, 10, NOW), Decision::Taken);
    let later = NOW.after(Duration::from_secs(5));
    assert_eq!(limiter.send(&known, 5, later), Decision::Taken);
    assert_eq!(limiter.send(&known, 1, later), REFUSED);
}

#[test]
fn rule_14_forgetting_a_queue_drops_every_bucket_of_its_name_and_no_other() {
    let (limiter, known) = limiter();
    limiter.learn(&caller(2), "jobs", ten());
    let theirs = limiter.known(Tenant(2), "jobs").unwrap();
    assert_eq!((limiter.send(&known, 10, NOW), limiter.send(&theirs, 10, NOW)), (Decision::Taken, Decision::Taken));
    limiter.forget(OURS, "jobs");
    assert!(limiter.known(OURS, "jobs").is_none());
    assert_eq!(limiter.0.buckets.readings().len(), 1);
    assert_eq!(limiter.send(&theirs, 1, NOW), REFUSED);
}

#[test]
fn rule_15_as_many_threads_as_want_get_exactly_the_capacity() {
    for _ in 0..50 {
        let (limiter, known) = limiter();
        let taken = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        match limiter.send(&known, 1, NOW) {
                            Decision::Taken => drop(taken.fetch_add(1, Ordering::Relaxed)),
                            decision => assert_eq!(decision, REFUSED),
                        }
                    }
                });
            }
        });
        assert_eq!(taken.into_inner(), 10);
    }
}

#[test]
fn rule_15_those_who_learn_of_a_queue_at_once_share_its_bucket() {
    for _ in 0..50 {
        let limiter = Limiter::default();
        let taken = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    limiter.learn(&caller(1), "jobs", ten());
                    for _ in 0..5 {
                        if limiter.send_one(NOW) == Decision::Taken {
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(taken.into_inner(), 10);
    }
}

#[test]
fn rule_15_a_bucket_that_is_swept_while_it_is_used_gives_no_second_burst() {
    // The bucket was idle for long enough; sweeps and chargers come at once. A charger that was first keeps it, one
    // that comes late finds a full one: either way ten in all, because nothing was taken from the old one.
    for _ in 0..200 {
        let (limiter, known) = limiter();
        assert_eq!(limiter.send(&known, 0, NOW), Decision::Taken);
        let later = NOW.after(IDLE + Duration::from_secs(1));
        let taken = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| limiter.0.buckets.sweep(later));
            }
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        if limiter.send(&known, 1, later) == Decision::Taken {
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(taken.into_inner(), 10);
    }
}

#[test]
fn rule_15_who_finds_only_evicted_buckets_is_refused() {
    let (limiter, known) = limiter();
    let stopped = AtomicBool::new(false);
    let mut seen = [0_u32; 2];
    thread::scope(|scope| {
        scope.spawn(|| {
            // Every look of the charger below finds a bucket that is being removed.
            while !stopped.load(Ordering::Relaxed) {
                limiter.0.buckets.drop_queue(OURS, &known.queue);
            }
        });
        for _ in 0..20_000 {
            match limiter.send(&known, 1, NOW) {
                Decision::Taken => seen[0] += 1,
                decision => {
                    assert_eq!(decision, REFUSED, "it fails closed, with a wait of a second");
                    seen[1] += 1;
                }
            }
        }
        stopped.store(true, Ordering::Relaxed);
    });
    assert_eq!(seen[0] + seen[1], 20_000);
}

#[test]
fn rule_15_a_bucket_that_everybody_finds_evicted_is_refused_after_four_looks() {
    let (limiter, known) = limiter();
    assert_eq!(limiter.send(&known, 1, NOW), Decision::Taken);
    // As a remover leaves it between its mark and its removal, which no remover does: the map still has it.
    limiter.0.buckets.mark_evicted(&known);
    assert_eq!(limiter.send(&known, 1, NOW), REFUSED);
}

#[test]
fn rule_16_the_sweep_removes_what_was_idle_for_more_than_an_hour() {
    let (limiter, known) = limiter();
    limiter.learn(&caller(1), "busy", ten());
    let busy = limiter.known(OURS, "busy").unwrap();
    assert_eq!((limiter.send(&known, 1, NOW), limiter.send(&busy, 1, NOW)), (Decision::Taken, Decision::Taken));
    known.confirm(&ten());
    busy.confirm(&ten());
    let (hour, beyond) = (NOW.after(IDLE), NOW.after(IDLE + Duration::from_micros(1)));
    limiter.sweep(hour);
    assert_eq!(limiter.0.buckets.readings().len(), 2);
    // A refusal is a use, too.
    assert_eq!(limiter.send(&busy, 10_000, hour), Decision::Refused { retry_after_s: 3_600 });
    busy.confirm(&Truth { read_at: hour, ..ten() });
    limiter.sweep(beyond);
    let left: Vec<_> = limiter.0.buckets.readings().into_iter().map(|reading| reading.queue).collect();
    assert_eq!(left, [Arc::from("busy")]);
    assert_eq!(limiter.0.memory.len(), 1, "and what was known of it");
}

#[test]
fn rule_18_a_gauge_goes_with_its_bucket_and_no_late_decision_brings_it_back() {
    let (limiter, known) = limiter();
    assert_eq!(limiter.send(&known, 4, NOW), Decision::Taken);
    let series = "waybill_sqs_throttle_tokens_remaining{account=\"000000000000\",queue=\"jobs\",action=\"send\"} 6\n";
    assert!(limiter.shown().ends_with(series), "{}", limiter.shown());
    assert!(limiter.shown().contains("# TYPE waybill_sqs_throttle_tokens_remaining gauge\n"));
    // A refusal shows what there is.
    assert_eq!(limiter.send(&known, 10, NOW.after(Duration::from_millis(500))), Decision::Refused { retry_after_s: 4 });
    assert!(limiter.shown().ends_with("} 6.5\n"), "{}", limiter.shown());
    limiter.forget(OURS, "jobs");
    assert_eq!(limiter.shown(), "");
    assert_eq!(limiter.send(&known, 1, NOW), Decision::Outdated);
    assert_eq!(limiter.shown(), "");
}

#[test]
fn rule_18_beyond_512_queues_the_rest_are_other() {
    let limiter = Limiter::default();
    for number in 0..600 {
        let queue = format!("q{number}");
        limiter.learn(&caller(1), &queue, ten());
        let known = limiter.known(OURS, &queue).unwrap();
        assert_eq!(limiter.send(&known, 1 + number % 7, NOW), Decision::Taken);
    }
    let shown = limiter.shown();
    let series = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(series(&shown), crate::metrics::QUEUES_MAX + 1);
    let other = "waybill_sqs_throttle_tokens_remaining{account=\"_other\",queue=\"_other\",action=\"send\"} 3\n";
    assert!(shown.contains(other), "the emptiest of them: {shown}");
    // The same ones are named the next time, and a queue that is gone makes room for another.
    assert_eq!(limiter.shown(), shown);
    for number in 0..600 {
        limiter.forget(OURS, &format!("q{number}"));
    }
    limiter.learn(&caller(1), "late", ten());
    let known = limiter.known(OURS, "late").unwrap();
    assert_eq!(limiter.send(&known, 1, NOW), Decision::Taken);
    assert!(limiter.shown().contains("queue=\"late\""));
}

#[test]
fn a_refusal_rests_on_a_memory_only_for_a_moment_after_it_was_confirmed() {
    let (_, known) = limiter();
    assert!(!known.is_trusted(NOW), "nobody has confirmed it yet");
    known.confirm(&ten());
    assert!(known.is_trusted(NOW.after(TRUSTED)));
    assert!(!known.is_trusted(NOW.after(TRUSTED + Duration::from_micros(1))));
    let (limiter, known) = limiter();
    known.confirm(&ten());
    limiter.forget(OURS, "jobs");
    assert!(!known.is_trusted(NOW));
}
