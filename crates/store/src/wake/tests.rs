//! What the hub does with wakes that are used, passed on and left behind.

use super::*;

const TOPIC: Topic = Topic(1);

async fn is_woken(subscription: &mut Subscription) -> bool {
    tokio::time::timeout(Duration::from_millis(1), subscription.woken()).await.is_ok()
}

async fn is_set(flag: &WakeFlag) -> bool {
    tokio::time::timeout(Duration::from_millis(1), flag.wait()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn n_items_wake_the_first_n_in_order() {
    let hub = Hub::new();
    let mut waiters: Vec<_> = (0..4).map(|_| hub.subscribe(TOPIC)).collect();
    hub.release(&[Wake::Now(TOPIC, 2)]);
    let mut woken = Vec::new();
    for waiter in &mut waiters {
        woken.push(is_woken(waiter).await);
    }
    assert_eq!(woken, [true, true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_finds_nothing_passes_its_wake_on_and_the_chain_ends() {
    let hub = Hub::new();
    let (mut first, mut second) = (hub.subscribe(TOPIC), hub.subscribe(TOPIC));
    hub.release(&[Wake::Now(TOPIC, 1)]);
    assert!(is_woken(&mut first).await);
    first.found_nothing(true);
    assert!(is_woken(&mut second).await);
    second.found_nothing(true);
    assert!(!is_woken(&mut first).await && !is_woken(&mut second).await);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_with_a_wake_passes_it_on() {
    let hub = Hub::new();
    let (first, mut second) = (hub.subscribe(TOPIC), hub.subscribe(TOPIC));
    hub.release(&[Wake::Now(TOPIC, 1)]);
    drop(first);
    assert!(is_woken(&mut second).await);
    second.satisfied();
    drop(second);
    assert!(hub.lock().topics.is_empty(), "nothing is kept for topics nobody waits for");
}

#[tokio::test(start_paused = true)]
async fn who_looks_again_for_what_may_have_been_missed_wakes_nobody_else() {
    let hub = Hub::new();
    let mut waiters: Vec<_> = (0..3).map(|_| hub.subscribe(TOPIC)).collect();
    hub.look_again();
    for waiter in &mut waiters {
        assert!(is_woken(waiter).await);
        waiter.found_nothing(true);
    }
    for waiter in &mut waiters {
        assert!(!is_woken(waiter).await);
    }
}

#[test]
fn a_flag_shows_wakes_since_it_began_and_keeps_them() {
    let hub = Hub::new();
    hub.release(&[Wake::Now(TOPIC, u32::MAX)]);
    let (flag, other) = (hub.flag(TOPIC), hub.flag(Topic(2)));
    assert!(!flag.woken());
    hub.release(&[Wake::Now(TOPIC, u32::MAX)]);
    assert!(flag.woken() && flag.woken() && !other.woken());
    let next = hub.flag(TOPIC);
    drop(flag);
    assert!(!next.woken());
    hub.look_again();
    assert!(other.woken() && !hub.flag(TOPIC).woken());
}

#[tokio::test(start_paused = true)]
async fn a_flag_can_be_waited_for_and_the_end_of_the_program_is_no_wake() {
    let hub = Hub::new();
    let (flag, other) = (hub.flag(TOPIC), hub.flag(Topic(2)));
    assert!(!is_set(&flag).await);
    hub.release(&[Wake::Now(TOPIC, u32::MAX)]);
    assert!(is_set(&flag).await && is_set(&flag).await);
    hub.close();
    assert!(!is_set(&other).await && !is_set(&hub.flag(TOPIC)).await);
    hub.look_again();
    assert!(is_set(&other).await);
}

#[tokio::test(start_paused = true)]
async fn a_wake_between_two_runs_is_not_lost() {
    let hub = Hub::new();
    let mut waiter = hub.subscribe(TOPIC);
    hub.release(&[Wake::Now(TOPIC, 1)]);
    assert!(is_woken(&mut waiter).await);
    hub.release(&[Wake::Now(TOPIC, 1)]);
    waiter.found_nothing(true);
    assert!(is_woken(&mut waiter).await);
}

#[tokio::test(start_paused = true)]
async fn of_many_who_wait_one_is_woken_when_the_time_has_come() {
    let (hub, time) = (Hub::new(), waybill_kernel::clock::manual::ManualSource::at(1_000_000));
    let clock = Arc::new(Clock::new(time.clone()));
    let keeper = tokio::spawn(hub.keep_time(Arc::clone(&clock)));
    let mut waiters: Vec<_> = (0..100).map(|_| hub.subscribe(TOPIC)).collect();
    let at = Time::from_micros(clock.now().micros() + 2_000_000);
    hub.release(&[Wake::At(TOPIC, at)]);
    // Each of them may have found the same time by itself.
    waiters.iter().for_each(|_| assert!(hub.due(TOPIC, at)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!is_woken(&mut waiters[0]).await);
    time.pass(Duration::from_secs(2));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut woken = 0;
    for waiter in &mut waiters {
        woken += usize::from(is_woken(waiter).await);
    }
    assert_eq!(woken, 1);
    assert!(hub.lock().due.is_empty());
    drop((waiters, hub));
    tokio::time::timeout(Duration::from_secs(60), keeper).await.expect("it goes on without a hub").unwrap();
}

#[test]
fn a_time_that_nobody_waits_for_is_not_kept() {
    let hub = Hub::new();
    assert!(hub.due(TOPIC, Time::from_micros(7)));
    assert!(hub.lock().due.is_empty());
}

/// Which of them are woken, in their order. Those that are have found something.
async fn satisfied(waiters: &mut [Subscription]) -> Vec<bool> {
    let mut woken = Vec::new();
    for waiter in waiters {
        let is_woken = is_woken(waiter).await;
        if is_woken {
            waiter.satisfied();
        }
        woken.push(is_woken);
    }
    woken
}

/// Of so many waiters some are woken when a time has come.
fn timed(waiters: usize) -> (Hub, Vec<Subscription>) {
    let (hub, now) = (Hub::new(), Time::from_micros(7));
    let waiters: Vec<_> = (0..waiters).map(|_| hub.subscribe(TOPIC)).collect();
    assert!(hub.due(TOPIC, now));
    hub.fire(now);
    (hub, waiters)
}

#[tokio::test(start_paused = true)]
async fn a_time_wakes_one_more_for_as_long_as_something_is_found() {
    let (hub, mut waiters) = timed(5);
    assert_eq!(satisfied(&mut waiters[..3]).await, [true; 3]);
    assert!(is_woken(&mut waiters[3]).await);
    waiters[3].found_nothing(true);
    assert_eq!(satisfied(&mut waiters).await, [false; 5]);
    // One item is for one waiter, whether or not a time has come before.
    hub.release(&[Wake::Now(TOPIC, 1)]);
    assert_eq!(satisfied(&mut waiters).await, [true, false, false, false, false]);
}

#[tokio::test(start_paused = true)]
async fn a_time_at_which_some_find_nothing_reaches_those_behind_them() {
    let (_hub, mut waiters) = timed(4);
    for waiter in &mut waiters[..2] {
        assert!(is_woken(waiter).await);
        waiter.found_nothing(true);
    }
    assert_eq!(satisfied(&mut waiters).await, [false, false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_would_find_wakes_nobody_else() {
    let (hub, mut waiters) = timed(3);
    assert!(is_woken(&mut waiters[0]).await);
    waiters[0].nothing_is_there();
    assert_eq!(satisfied(&mut waiters).await, [false; 3]);
    // What comes during a look is for the next.
    hub.release(&[Wake::Now(TOPIC, 1)]);
    assert!(is_woken(&mut waiters[0]).await);
    hub.release(&[Wake::Now(TOPIC, 1)]);
    waiters[0].nothing_is_there();
    assert_eq!(satisfied(&mut waiters).await, [true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_was_not_used_is_passed_on() {
    let (_hub, mut waiters) = timed(5);
    assert_eq!(satisfied(&mut waiters[..1]).await, [true]);
    // One leaves before it has heard of it, the next when it has.
    drop(waiters.remove(1));
    assert!(is_woken(&mut waiters[1]).await);
    drop(waiters.remove(1));
    assert!(is_woken(&mut waiters[1]).await);
    waiters[1].found_nothing(true);
    assert_eq!(satisfied(&mut waiters).await, [false; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_probe_does_not_end_with_a_run_that_did_not_look_everywhere() {
    let (_hub, mut waiters) = timed(3);
    assert_eq!(satisfied(&mut waiters[..1]).await, [true]);
    assert!(is_woken(&mut waiters[1]).await);
    waiters[1].found_nothing(false);
    // It looks again by itself, and finds something.
    waiters[1].satisfied();
    assert_eq!(satisfied(&mut waiters).await, [false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_with_two_wakes_passes_both_on() {
    let hub = Hub::new();
    let mut waiters: Vec<_> = (0..4).map(|_| hub.subscribe(TOPIC)).collect();
    for _ in 0..2 {
        // The first has taken one and is busy with it when the other comes.
        hub.release(&[Wake::Now(TOPIC, 1)]);
        assert!(waiters[0].waiter.pending() == Given::WAKE);
        if waiters[0].holding == Given::NOTHING {
            assert!(is_woken(&mut waiters[0]).await);
        }
    }
    drop(waiters.remove(0));
    assert_eq!(satisfied(&mut waiters).await, [true, true, false]);
}
