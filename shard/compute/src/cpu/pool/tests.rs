//! The pool under oversubscription, panics and several callers.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Every member adds to its own cell, then reads its neighbour's after a barrier.
fn rounds(pool: &Pool, rounds: usize) {
    let threads = pool.threads();
    let cells: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
    pool.run(&|member| {
        for round in 1..=rounds {
            cells[member.index()].store(round, Ordering::Relaxed);
            member.wait();
            let neighbour = &cells[(member.index() + 1) % threads];
            assert_eq!(neighbour.load(Ordering::Relaxed), round);
            member.wait();
        }
    })
    .unwrap();
}

#[test]
fn members_stay_in_step() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads).unwrap();
        for _ in 0..300 {
            rounds(&pool, 5);
        }
    }
}

#[test]
fn many_pools_at_once_make_progress() {
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let pool = Pool::new(3).unwrap();
                (0..100).for_each(|_| rounds(&pool, 10));
            });
        }
    });
}

#[test]
fn one_pool_serves_several_callers() {
    let pool = Pool::new(2).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..100).for_each(|_| rounds(&pool, 3)));
        }
    });
}

#[test]
fn shares_cover_everything_once() {
    for threads in 1..6 {
        let pool = Pool::new(threads).unwrap();
        for count in 0..20 {
            let touched: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            pool.run(&|member| {
                for index in member.share(count) {
                    touched[index].fetch_add(1, Ordering::Relaxed);
                }
            })
            .unwrap();
            assert!(touched.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn a_panic_reaches_the_caller_and_frees_the_others() {
    for culprit in 0..3 {
        let pool = Pool::new(3).unwrap();
        let job = |member: &Member<'_>| {
            member.wait();
            assert!(member.index() != culprit, "on purpose");
            member.wait();
            member.wait();
        };
        let error = pool.run(&job).unwrap_err().to_string();
        assert!(error.contains(&format!("thread {culprit} panicked: on purpose")), "{error}");
        let again = pool.run(&|_| unreachable!("a broken pool runs nothing")).unwrap_err().to_string();
        assert_eq!(again, error);
    }
}

#[test]
fn workers_are_named() {
    let pool = Pool::new(2).unwrap();
    pool.run(&|member| {
        if member.index() == 1 {
            assert_eq!(std::thread::current().name(), Some("paceline-cpu-1"));
        }
    })
    .unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn members_stay_on_their_cores() {
    let allowed = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    };
    // Some core that this test may use.
    let core: usize = allowed().split([',', '-']).next().unwrap().parse().unwrap();
    std::thread::spawn(move || {
        let pool = Pool::on_cores(&[core, core]).unwrap();
        pool.run(&|_| assert_eq!(allowed(), core.to_string())).unwrap();
        rounds(&pool, 100);
    })
    .join()
    .unwrap();
}

#[test]
fn a_core_that_does_not_exist_is_no_obstacle() {
    std::thread::spawn(|| rounds(&Pool::on_cores(&[usize::MAX, 1 << 20]).unwrap(), 10)).join().unwrap();
}

#[test]
fn no_threads_are_refused() {
    assert!(matches!(Pool::new(0), Err(Error::Threads { .. })));
    assert!(matches!(Pool::on_cores(&[]), Err(Error::Threads { .. })));
}
