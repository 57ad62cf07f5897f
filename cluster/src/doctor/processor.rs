//! Checks of the processor: what it can compute, how much of it there is for us, and how steadily it runs.

use paceline_compute::cpu::simd::Isa;

use super::Host;
use super::finding::{Checked, Finding, Unknown, counted};
use crate::host::groups::{Groups, Quota};
use crate::host::numbers_in;

/// With less load per core, nobody else counts.
const QUIET: f64 = 0.25;
/// From this share of stopped periods on, a quota is felt.
const OFTEN: f64 = 0.01;
/// From this share of stolen time on, a virtual machine has bad neighbours.
const STOLEN: f64 = 0.01;
/// A core that needs more microseconds than this to wake is late for the next operation of a step.
const LATE_MICROS: u64 = 100;
/// No processor has more idle states than this.
const IDLE_STATES: usize = 16;

/// Which kernels run here.
pub(super) fn instructions(host: &Host) -> Checked {
    Ok(Some(match host.isa {
        Isa::Avx512 => Finding::good("avx512: the fastest kernels there are"),
        Isa::Avx2 => Finding::good("avx2: vector kernels; avx512, which are wider, need a processor with AVX-512 VNNI"),
        Isa::Scalar if !host.has_vector_kernels => Finding::warning(
            "there are vector kernels for x86-64 alone: here plain code computes, many times slower",
            "use an x86-64 host for more than small models",
        ),
        Isa::Scalar => {
            let advice = match host.is_virtual() {
                Some(true) => {
                    "give the virtual machine its host's processor (`-cpu host` of QEMU, `host-passthrough` of libvirt)"
                }
                _ => "use a host with AVX2: most processors since 2015 have it",
            };
            Finding::warning("no AVX2 with FMA and F16C: plain code computes, many times slower", advice)
        }
    }))
}

/// How many of the machine's cores this process may use.
pub(super) fn cores(host: &Host) -> Checked {
    let machine = host.read("sys/devices/system/cpu/online", numbers_in)?.len();
    let allowed = host.allowed_cores()?.len();
    if allowed >= machine {
        return Ok(Some(Finding::good(format!("all {} may be used", counted(machine, "core")))));
    }
    let advice = "if more are wanted, see `taskset -p $$` for the shell, CPUAffinity= of the unit, `docker update --cpuset-cpus` \
                  for a container";
    Ok(Some(Finding::note(format!("{allowed} of {} may be used", counted(machine, "core")), advice)))
}

/// Whether control groups stop threads that have had their time.
pub(super) fn quota(host: &Host) -> Checked {
    let Some(quota) = Groups::of(&host.root).quota() else { return Ok(None) };
    let allowed = host.allowed_cores()?.len();
    let Quota { cores, periods, throttled } = quota;
    if cores >= allowed as f64 && throttled == 0 {
        return Ok(Some(Finding::good(format!("the time of {cores:.1} cores, no less than may be used"))));
    }
    let so_far = if periods == 0 { String::new() } else { format!(", so far in {throttled} of {periods} periods") };
    let found = format!("threads are stopped for the rest of a period when {cores:.1} cores' time is used up{so_far}");
    if cores < 1.0 {
        let advice =
            "give it at least one core's time: `docker run --cpus`, limits.cpu of Kubernetes, CPUQuota= of the unit";
        return Ok(Some(Finding::warning(found, advice)));
    }
    let threads = (cores as usize).min(allowed);
    let advice = format!(
        "say no more than `--threads {threads}`, which is taken by default; better than a quota are cores of its own \
         (`docker run --cpuset-cpus`, CPUAffinity= of the unit)"
    );
    let often = periods > 0 && throttled as f64 >= OFTEN * periods as f64;
    Ok(Some(if often { Finding::warning(found, advice) } else { Finding::note(found, advice) }))
}

/// Who else wants the cores.
pub(super) fn load(host: &Host) -> Checked {
    let load = host.read("proc/loadavg", |text| {
        let load: f64 = text.split_whitespace().next()?.parse().ok()?;
        (load.is_finite() && load >= 0.0).then_some(load)
    })?;
    let machine = host.read("sys/devices/system/cpu/online", numbers_in)?.len();
    let found = format!("{load:.1} threads ran or wanted to on {} over the last minute", counted(machine, "core"));
    let share = load / machine as f64;
    if share < QUIET {
        return Ok(Some(Finding::good(found)));
    }
    let left = machine.saturating_sub(load.round() as usize).max(1);
    let advice = format!(
        "if that is not Paceline itself, stop what else runs (`top` shows it), or leave it its cores with `--threads {left}`"
    );
    Ok(Some(if share < 1.0 { Finding::note(found, advice) } else { Finding::warning(found, advice) }))
}

/// Whether the host of a virtual machine gives its cores to others.
pub(super) fn stolen(host: &Host) -> Checked {
    let (stolen, all) = host.read("proc/stat", |text| {
        let times = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // User, nice, system, idle, waiting, two kinds of interrupts, stolen; what guests take is in them already.
        let times = times.take(8).map(str::parse::<u64>).collect::<Result<Vec<_>, _>>().ok()?;
        let all = times.iter().try_fold(0_u64, |sum, time| sum.checked_add(*time))?;
        (all > 0).then_some((*times.get(7)?, all))
    })?;
    if stolen == 0 && host.is_virtual() != Some(true) {
        return Ok(None);
    }
    let share = stolen as f64 / all as f64;
    let found =
        format!("since it started, the virtual machine did not get its cores for {:.1}% of the time", share * 100.0);
    if share < STOLEN {
        return Ok(Some(Finding::good(found)));
    }
    let advice = "others on the same hardware take it: rent dedicated cores, or another host";
    Ok(Some(Finding::warning(found, advice)))
}

/// Whether clocks go up at once when there is work.
pub(super) fn governor(host: &Host) -> Checked {
    let cores = host.allowed_cores()?;
    let of_core = |core: &usize| host.text(&format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"));
    let mut governors: Vec<String> = cores.iter().filter_map(of_core).map(|text| text.trim().to_owned()).collect();
    governors.sort();
    governors.dedup();
    let Some(first) = cores.first().filter(|_| !governors.is_empty()) else {
        return not_shown(host, "which governor sets the clock");
    };
    let names = governors.join(", ");
    if names == "performance" {
        return Ok(Some(Finding::good("the governor is performance")));
    }
    let driver = host.text(&format!("sys/devices/system/cpu/cpu{first}/cpufreq/scaling_driver")).unwrap_or_default();
    let driver = driver.trim();
    let advice = "`echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor` keeps clocks up until \
                  the next start";
    // These two drivers raise clocks under load whatever the governor is called.
    let raises = ["intel_pstate", "amd-pstate-epp"].contains(&driver);
    let slow = governors.iter().any(|name| name == "conservative" || (name == "powersave" && !raises));
    Ok(Some(if slow {
        Finding::warning(format!("the governor is {names}: clocks stay low, or rise late"), advice)
    } else {
        Finding::note(format!("the governor is {names}: clocks follow the work, and are late for short steps"), advice)
    }))
}

/// How deep cores sleep while they wait.
pub(super) fn idle_states(host: &Host) -> Checked {
    let cores = host.allowed_cores()?;
    let Some(core) = cores.first() else { return not_shown(host, "how deep idle cores sleep") };
    let states = (0..IDLE_STATES).filter_map(|state| {
        let file = |name: &str| host.text(&format!("sys/devices/system/cpu/cpu{core}/cpuidle/state{state}/{name}"));
        let latency: u64 = file("latency")?.trim().parse().ok()?;
        let enabled = file("disable").is_none_or(|text| text.trim() == "0");
        enabled.then(|| (latency, file("name").unwrap_or_default().trim().to_owned()))
    });
    let Some((micros, name)) = states.max() else { return not_shown(host, "how deep idle cores sleep") };
    let found = format!("cores that wait sleep as deep as {name}, and wake within {micros} µs");
    if micros <= LATE_MICROS {
        return Ok(Some(Finding::good(found)));
    }
    let advice =
        format!("`sudo cpupower idle-set --disable-by-latency {LATE_MICROS}` keeps them awake, for more power");
    Ok(Some(Finding::note(found, advice)))
}

/// A virtual machine does not see what its host does with the processor, and need not.
fn not_shown(host: &Host, what: &str) -> Checked {
    match host.is_virtual() {
        Some(true) => Ok(Some(Finding::good(format!("a virtual machine is not shown {what}")))),
        _ => Err(Unknown::because(format!("the system does not show {what}"))),
    }
}
