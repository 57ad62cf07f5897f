//! Made-up hosts, and what is said of them.

use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use paceline_cuda::card::Card;
use paceline_cuda::libraries::{LINKS, PRODUCTS};
use paceline_cuda::nvrtc::Capability;
use proptest::prelude::{any, proptest};
use tempfile::TempDir;

use super::asking::Unreached;
use super::finding::Grade::{self, Good, Note, Warning};
use super::*;

/// The files of a host with which nothing is wrong: 4 cores, 16 GiB.
const FILES: [(&str, &str); 26] = [
    ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx2 avx512f\n"),
    ("proc/loadavg", "0.10 0.20 0.30 1/200 999\n"),
    ("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"),
    ("proc/stat", "cpu  100 0 50 800 5 0 5 0 0 0\ncpu0 100 0 50 800 5 0 5 0 0 0\n"),
    ("proc/self/cgroup", "0::/user.slice/shell.scope\n"),
    (
        "proc/self/limits",
        "Limit  Soft Limit  Hard Limit  Units\n\
        Max open files  65536  65536  files\nMax locked memory  unlimited  unlimited  bytes\n",
    ),
    ("proc/self/status", "Name:\tpaceline\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3\n"),
    ("proc/self/uid_map", "         0          0 4294967295\n"),
    ("proc/sys/net/core/rmem_max", "8388608\n"),
    ("proc/sys/net/core/wmem_max", "8388608\n"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0\n"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "0\n"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "2\n"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1\n"),
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/node/node0/cpulist", "0-3\n"),
    ("sys/devices/system/node/online", "0\n"),
    ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
    ("sys/fs/cgroup/user.slice/memory.max", "max\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
];

/// What a system without anything of NVIDIA's says.
fn no_gpus() -> Gpus {
    let others = [PRODUCTS, LINKS].map(|wanted| (wanted, false)).to_vec();
    Gpus { cards: Err("no driver".to_owned()), compiler: Err("no compiler".to_owned()), others }
}

/// A host in a folder.
struct MadeUp {
    folder: TempDir,
    host: Host,
}

impl MadeUp {
    /// One with which nothing is wrong.
    fn good() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let host = Host {
            root: folder.path().to_owned(),
            isa: Isa::Avx512,
            has_vector_kernels: true,
            ports: vec![Port { number: 8080, wanted: asking::Wanted::Requests, bound: Ok(()) }],
            reached: Vec::new(),
            gpus: no_gpus(),
        };
        FILES.into_iter().fold(Self { folder, host }, |host, (path, text)| host.with(path, text))
    }

    /// With other bytes in a file.
    fn with(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("writable");
        self
    }

    /// With other words in a file.
    fn changed(self, path: &str, from: &str, to: &str) -> Self {
        let text = fs::read_to_string(self.folder.path().join(path)).expect("a file");
        assert!(text.contains(from), "{path} has no {from}");
        self.with(path, text.replace(from, to))
    }

    /// Without a file or folder.
    fn without(self, path: &str) -> Self {
        let whole = self.folder.path().join(path);
        let removed = if whole.is_dir() { fs::remove_dir_all(whole) } else { fs::remove_file(whole) };
        removed.expect("it was there");
        self
    }

    /// The same as a virtual machine.
    fn virtualized(self) -> Self {
        self.changed("proc/cpuinfo", "fpu", "fpu hypervisor")
    }

    fn entry(&self, area: &str) -> Option<Entry> {
        examine(&self.host).findings.into_iter().find(|entry| entry.area == area)
    }

    /// The finding about an area is of this grade and has these words, and its advice those; no advice if there are none.
    #[track_caller]
    fn says(&self, area: &str, grade: Grade, found: &str, advice: &str) {
        let entry = self.entry(area).unwrap_or_else(|| panic!("nothing about {area}"));
        let told = entry.finding.advice.clone().unwrap_or_default();
        assert_eq!(entry.finding.grade, grade, "{entry:?}");
        assert!(entry.finding.found.contains(found), "{entry:?} has no {found:?}");
        assert!(told.contains(advice) && told.is_empty() == advice.is_empty(), "{entry:?} has no {advice:?}");
    }
}

#[test]
fn of_a_good_host_a_line_is_said_about_each_thing() {
    let report = examine(&MadeUp::good().host);
    let bad: Vec<_> = report.findings.iter().filter(|entry| entry.finding.grade != Good).collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert!(report.can_serve && report.reasons_not_to_serve().is_empty());
    let text = report.to_string();
    assert!(text.ends_with("\n\n0 warnings, 0 notes; nothing keeps this host from serving\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("good ")).count(), report.findings.len(), "{text}");
    assert_eq!(text.lines().count(), report.findings.len() + 2, "{text}");
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["findings"][0]["area"], "instructions");
    assert_eq!((&json["findings"][0]["grade"], &json["can_serve"]), (&"good".into(), &true.into()));
}

#[test]
fn kernels_are_named_with_what_they_mean() {
    let mut host = MadeUp::good();
    host.says("instructions", Good, "avx512: the fastest", "");
    host.host.isa = Isa::Avx2;
    host.says("instructions", Good, "avx2", "");
    host.host.isa = Isa::Scalar;
    host.says("instructions", Warning, "no AVX2", "a host with AVX2");
    host = host.virtualized();
    host.says("instructions", Warning, "no AVX2", "host-passthrough");
    host.host.has_vector_kernels = false;
    host.says("instructions", Warning, "x86-64 alone", "x86-64 host");
}

#[test]
fn cores_are_counted_against_those_of_the_machine() {
    MadeUp::good().says("cores", Good, "all 4 cores", "");
    let status = "proc/self/status";
    MadeUp::good().changed(status, "0-3", "1,3").says("cores", Note, "2 of 4 cores", "CPUAffinity");
    MadeUp::good().without(status).says("cores", Note, "not known: there is no /proc/self/status", "");
    MadeUp::good().with(status, "Cpus_allowed_list:\tall\n").says("cores", Note, "makes no sense", "");
}

#[test]
fn quotas_are_told_with_the_threads_that_fit() {
    let with = |quota: &str, statistics: &str| {
        let host = MadeUp::good().with("sys/fs/cgroup/user.slice/cpu.max", quota);
        host.with("sys/fs/cgroup/user.slice/cpu.stat", statistics)
    };
    assert_eq!(MadeUp::good().entry("CPU quota"), None);
    assert_eq!(with("max 100000", "").entry("CPU quota"), None);
    with("400000 100000", "nr_throttled 0").says("CPU quota", Good, "4.0 cores", "");
    with("250000 100000", "").says("CPU quota", Note, "2.5 cores' time", "`--threads 2`");
    let often = with("250000 100000", "nr_periods 1000\nnr_throttled 20\n");
    often.says("CPU quota", Warning, "in 20 of 1000 periods", "cpuset");
    with("250000 100000", "nr_periods 1000\nnr_throttled 2\n").says("CPU quota", Note, "in 2 of 1000", "cpuset");
    with("50000 100000", "").says("CPU quota", Warning, "0.5 cores' time", "at least one core");
    assert_eq!(with("much 100000", "").entry("CPU quota"), None);
}

#[test]
fn others_who_want_the_cores_are_noticed() {
    let load = "proc/loadavg";
    MadeUp::good().with(load, "2.10 1 1 1/2 3").says("other load", Note, "2.1 threads", "`--threads 2`");
    MadeUp::good().with(load, "9.00 1 1 1/2 3").says("other load", Warning, "on 4 cores", "`--threads 1`");
    for senseless in ["", "-1 0 0", "NaN 0 0", "inf", "much"] {
        MadeUp::good().with(load, senseless).says("other load", Note, "not known", "");
    }
    // Of a real machine nothing can be stolen.
    assert_eq!(MadeUp::good().entry("stolen time"), None);
    MadeUp::good().virtualized().says("stolen time", Good, "0.0%", "");
    let stolen = MadeUp::good().virtualized().with("proc/stat", "cpu  100 0 50 800 5 0 5 40 0 0\n");
    stolen.says("stolen time", Warning, "4.0%", "dedicated cores");
    MadeUp::good().with("proc/stat", "cpu  1 2 3\n").says("stolen time", Note, "not known", "");
    let endless = format!("cpu  {0} {0} 0 0 0 0 0 0\n", u64::MAX);
    MadeUp::good().with("proc/stat", endless).says("stolen time", Note, "not known", "");
}

#[test]
fn clocks_that_follow_and_cores_that_sleep_are_noticed() {
    let governor = "sys/devices/system/cpu/cpu2/cpufreq/scaling_governor";
    let driver = "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver";
    MadeUp::good().with(governor, "schedutil").says("clock", Note, "performance, schedutil", "scaling_governor");
    MadeUp::good().with(governor, "powersave").says("clock", Warning, "stay low", "scaling_governor");
    let pstate = MadeUp::good().with(governor, "powersave").with(driver, "intel_pstate\n");
    pstate.says("clock", Note, "follow the work", "scaling_governor");
    // A core that may not be used does not count.
    let unused = MadeUp::good().with(governor, "powersave").changed("proc/self/status", "0-3", "0-1");
    unused.says("clock", Good, "performance", "");
    let hidden =
        || (0..4).fold(MadeUp::good(), |host, core| host.without(&format!("sys/devices/system/cpu/cpu{core}")));
    hidden().says("clock", Note, "not known", "");
    hidden().says("idle states", Note, "not known", "");
    hidden().virtualized().says("clock", Good, "a virtual machine is not shown", "");
    hidden().virtualized().says("idle states", Good, "a virtual machine is not shown", "");
    let state = "sys/devices/system/cpu/cpu0/cpuidle/state2";
    let deep = |disabled: &str| {
        let host = MadeUp::good().with(&format!("{state}/latency"), "133\n").with(&format!("{state}/name"), "C6\n");
        host.with(&format!("{state}/disable"), disabled)
    };
    deep("0\n").says("idle states", Note, "C6, and wake within 133 µs", "cpupower");
    deep("1\n").says("idle states", Good, "C1, and wake within 2 µs", "");
}

#[test]
fn memory_is_what_is_free_and_allowed() {
    let meminfo = "proc/meminfo";
    MadeUp::good().says("memory", Good, "12.0 GiB of 16.0 GiB", "");
    MadeUp::good().changed(meminfo, "12582912", "4194304").says("memory", Note, "4.0 GiB of", "paceline plan");
    MadeUp::good().changed(meminfo, "12582912", "524288").says("memory", Warning, "512.0 MiB of", "ps aux");
    let none = MadeUp::good().changed(meminfo, "12582912", "131072");
    none.says("memory", Warning, "128.0 MiB of 16.0 GiB are free", "ps aux");
    let report = examine(&none.host);
    assert!(!report.can_serve && report.reasons_not_to_serve()[0].starts_with("memory: "), "{report}");
    assert!(report.to_string().ends_with("this host cannot serve as it is\n"), "{report}");
    MadeUp::good().changed(meminfo, "MemAvailable", "MemUsed").says("memory", Note, "not known", "");
    // Control groups of both versions.
    assert_eq!(MadeUp::good().entry("memory limit"), None);
    let group = "sys/fs/cgroup/user.slice/shell.scope";
    let limited = MadeUp::good().with(&format!("{group}/memory.max"), "4294967296");
    let limited = limited.with(&format!("{group}/memory.current"), "1073741824");
    limited.says("memory limit", Note, "4.0 GiB of the host's 16.0 GiB", "docker run --memory");
    limited.says("memory", Good, "3.0 GiB of 4.0 GiB", "");
    let first = MadeUp::good().with("proc/self/cgroup", "4:memory:/docker\n3:cpu,cpuacct:/docker\n");
    let first = first.with("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "2147483648\n");
    let first = first.with("sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "200000\n");
    let first = first.with("sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000\n");
    first.says("memory limit", Note, "2.0 GiB", "MemoryMax");
    first.says("CPU quota", Note, "2.0 cores' time", "`--threads 2`");
}

#[test]
fn memory_that_is_slow_or_moves_is_noticed() {
    let meminfo = "proc/meminfo";
    MadeUp::good().says("swap", Good, "no swap space", "");
    let swap = MadeUp::good().changed(meminfo, "SwapTotal: 0", "SwapTotal: 2097152");
    swap.says("swap", Warning, "2.0 GiB of 2.0 GiB", "--mlock");
    swap.changed(meminfo, "SwapFree: 0", "SwapFree: 2097000").says("swap", Good, "152.0 KiB of 2.0 GiB", "");
    let more =
        MadeUp::good().changed(meminfo, "SwapFree: 0", "SwapFree: 9").changed(meminfo, "SwapTotal: 0", "SwapTotal: 4");
    more.says("swap", Good, "0 B of", "");
    let huge = "sys/kernel/mm/transparent_hugepage/enabled";
    MadeUp::good().with(huge, "[always] madvise never\n").says("huge pages", Good, "always", "");
    MadeUp::good().with(huge, "always madvise [never]\n").says("huge pages", Warning, "small pages", "echo madvise");
    MadeUp::good().with(huge, "[sometimes]").says("huge pages", Note, "not known", "");
    MadeUp::good().without(huge).says("huge pages", Note, "not known: there is no", "");
    let limits = "proc/self/limits";
    let locked = || MadeUp::good().changed(limits, "unlimited  unlimited", "8388608  8388608");
    locked().says("locked memory", Note, "only 8.0 MiB", "ulimit -l unlimited");
    let root = locked().changed("proc/self/status", "CapEff:\t0000000000000000", "CapEff:\t000001ffffffffff");
    root.says("locked memory", Good, "do not hold", "");
    MadeUp::good().without(limits).says("locked memory", Note, "there is no /proc/self/limits", "");
    MadeUp::good().with(limits, "").says("locked memory", Note, "makes no sense", "");
}

#[test]
fn nodes_count_where_cores_of_ours_lie() {
    let two = |ours: &str| {
        let host = MadeUp::good().with("sys/devices/system/node/online", "0-1\n");
        let host = host.with("sys/devices/system/node/node0/cpulist", "0-1\n");
        host.with("sys/devices/system/node/node1/cpulist", "2-3\n").changed("proc/self/status", "0-3", ours)
    };
    two("0-3").says("NUMA", Note, "2 nodes", "--cpunodebind=0");
    two("2-3").says("NUMA", Good, "one node", "");
    let unread = two("2-3").without("sys/devices/system/node/node0");
    unread.says("NUMA", Note, "2 nodes", "--membind=0");
}

#[test]
fn few_files_are_noticed() {
    let limits = "proc/self/limits";
    MadeUp::good().changed(limits, "65536  65536", "256  65536").says("open files", Warning, "only 256", "LimitNOFILE");
    MadeUp::good().changed(limits, "65536  65536", "1024  65536").says("open files", Good, "1024", "");
    MadeUp::good().changed(limits, "65536  65536", "unlimited  unlimited").says("open files", Good, "as many", "");
    MadeUp::good().changed(limits, "65536  65536", "few  few").says("open files", Note, "not known", "");
}

#[test]
fn containers_are_known_by_their_signs() {
    MadeUp::good().says("container", Good, "no container", "");
    let signs = [
        (".dockerenv", "", "Docker"),
        ("run/.containerenv", "engine=podman\n", "Podman"),
        ("var/run/secrets/kubernetes.io/serviceaccount/token", "", "Kubernetes"),
        ("run/systemd/container", "systemd-nspawn", "systemd"),
        ("proc/1/cgroup", "4:memory:/kubepods/pod1/2\n", "Kubernetes"),
        ("proc/1/cgroup", "4:memory:/docker/12ab\n", "Docker"),
        ("proc/1/cgroup", "4:memory:/lxc/one\n", "LXC"),
    ];
    for (path, text, kind) in signs {
        MadeUp::good().with(path, text).says("container", Note, kind, "--network host");
    }
    MadeUp::good().with("proc/1/cgroup", "0::/init.scope\n").says("container", Good, "no container", "");
}

#[test]
fn who_manages_control_groups_is_told() {
    let two = "sys/fs/cgroup/cgroup.controllers";
    let one = || MadeUp::good().without(two).with("sys/fs/cgroup/memory/tasks", "");
    MadeUp::good().says("control groups", Good, "version 2", "");
    one().says("control groups", Good, "version 1:", "");
    one().with("sys/fs/cgroup/unified/cgroup.controllers", "").says("control groups", Good, "hybrid", "");
    MadeUp::good().without("sys/fs/cgroup").says("control groups", Note, "limits are not seen", "");
    let docker =
        |host: MadeUp, settings: &str| host.with("run/systemd/system/x", "").with("etc/docker/daemon.json", settings);
    let cgroupfs = r#"{"exec-opts": ["a=b", "native.cgroupdriver=cgroupfs"]}"#;
    assert_eq!(MadeUp::good().entry("Docker"), None);
    docker(MadeUp::good(), cgroupfs).says("Docker", Warning, "cgroupfs", "native.cgroupdriver=systemd");
    docker(MadeUp::good(), "{}").says("Docker", Good, "by systemd", "");
    docker(one(), "{}").says("Docker", Warning, "beside systemd", "/etc/docker/daemon.json");
    docker(one(), r#"{"exec-opts": ["native.cgroupdriver=systemd"]}"#).says("Docker", Good, "by systemd", "");
    MadeUp::good().with("etc/docker/daemon.json", cgroupfs).says("Docker", Good, "by cgroupfs", "");
    MadeUp::good().with("run/docker.sock", "").says("Docker", Good, "by cgroupfs", "");
    for senseless in ["", "{", "[1, 2"] {
        docker(MadeUp::good(), senseless).says("Docker", Note, "/etc/docker/daemon.json says makes no sense", "");
    }
    for other in ["[]", "null", r#"{"exec-opts": {"a": 1}}"#, r#"{"exec-opts": [1, null]}"#] {
        docker(MadeUp::good(), other).says("Docker", Good, "by systemd", "");
    }
    assert_eq!(docker(MadeUp::good(), cgroupfs).with(".dockerenv", "").entry("Docker"), None);
}

#[test]
fn buffers_are_compared_with_what_links_ask_for() {
    let (receive, send) = ("proc/sys/net/core/rmem_max", "proc/sys/net/core/wmem_max");
    MadeUp::good().says("UDP buffers", Good, "8.0 MiB received and 8.0 MiB sent", "");
    MadeUp::good().with(receive, "212992\n").says("UDP buffers", Note, "208.0 KiB received", "rmem_max=8388608");
    MadeUp::good().with(send, "212992\n").says("UDP buffers", Note, "208.0 KiB sent", "wmem_max=8388608");
    MadeUp::good().without(send).says("UDP buffers", Note, "there is no /proc/sys/net/core/wmem_max", "");
    MadeUp::good().with(receive, "-1").says("UDP buffers", Note, "makes no sense", "");
}

#[test]
fn a_port_that_is_not_to_be_had_is_told() {
    let with = |number, wanted, error| {
        let mut host = MadeUp::good();
        host.host.ports = vec![Port { number, wanted, bound: Err(error) }];
        host
    };
    let used = with(8080, asking::Wanted::Requests, ErrorKind::AddrInUse);
    used.says("port 8080", Warning, "in use (TCP", "`sudo ss -ltnp 'sport = :8080'`");
    assert!(!examine(&used.host).can_serve);
    with(80, asking::Wanted::Requests, ErrorKind::PermissionDenied).says(
        "port 80",
        Warning,
        "not for this user",
        "1024",
    );
    with(8080, asking::Wanted::Requests, ErrorKind::AddrNotAvailable).says(
        "port 8080",
        Warning,
        "not to be had",
        "--port",
    );
    let data = with(7071, asking::Wanted::Data, ErrorKind::AddrInUse);
    data.says("port 7071", Note, "in use (UDP", "-lunp");
    assert!(examine(&data.host).can_serve, "only a coordinator wants it");
    with(7070, asking::Wanted::Control, ErrorKind::AddrInUse).says("port 7070", Note, "shards join", "--control");
}

#[test]
fn hosts_are_reached_or_it_is_said_why_not() {
    let with = |connected| {
        let mut host = MadeUp::good();
        host.host.reached = vec![Reached { address: "10.0.0.5:7070".to_owned(), connected }];
        host
    };
    with(Ok(Duration::from_micros(300))).says("reach", Good, "10.0.0.5:7070 is connected within 0.3 ms", "");
    with(Ok(Duration::from_millis(40))).says("reach", Note, "40.0 ms", "nearer");
    let failures = [
        (Unreached::Name("unknown".to_owned()), "no address: unknown", "HOST:PORT"),
        (Unreached::Refused, "refuses", "start the coordinator"),
        (Unreached::Silent(Duration::from_secs(3)), "within 3 s", "firewall"),
        (Unreached::Other("no route to host".to_owned()), "no route", "ip route"),
    ];
    for (failure, found, advice) in failures {
        let host = with(Err(failure));
        host.says("reach", Warning, found, advice);
        assert!(!examine(&host.host).can_serve, "it was asked for");
    }
}

#[test]
fn texts_of_others_do_not_steer_the_terminal() {
    let name = "sys/devices/system/cpu/cpu0/cpuidle/state1/name";
    let mut host = MadeUp::good().with(name, "\u{1b}[2JC1");
    host.host.reached = vec![Reached { address: "\u{1b}]0;x".to_owned(), connected: Err(Unreached::Refused) }];
    let report = examine(&host.host);
    let text = report.to_string() + &report.reasons_not_to_serve().concat();
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

/// Files that tell of nothing but limits, or whose absence has a meaning.
const DISPENSABLE: [&str; 6] = ["cgroup", "cpufreq", "cpuidle", "cpuinfo", "cpulist", "uid_map"];

#[test]
fn what_is_missing_unreadable_or_empty_is_said_not_to_be_known() {
    for (path, _) in FILES {
        if DISPENSABLE.iter().any(|part| path.contains(part)) {
            continue;
        }
        // A folder is a file that cannot be read, also by root.
        let folder = MadeUp::good().without(path).with(&format!("{path}/inside"), "");
        let enormous = vec![b'9'; 3 << 20];
        let hosts =
            [MadeUp::good().without(path), MadeUp::good().with(path, ""), MadeUp::good().with(path, enormous), folder];
        for (index, host) in hosts.into_iter().enumerate() {
            let findings = examine(&host.host).findings;
            let unknown =
                |entry: &&Entry| entry.finding.grade == Note && entry.finding.found.starts_with("not known: ");
            let named = findings.iter().filter(unknown).any(|entry| entry.finding.found.contains(&format!("/{path}")));
            assert!(named, "{path} in way {index}: {findings:?}");
            assert!(findings.iter().all(|entry| !entry.finding.prevents_serving), "{findings:?}");
        }
    }
}

#[test]
fn of_a_host_without_any_files_nothing_is_known_and_it_may_serve() {
    let mut host = MadeUp::good();
    host.host.root = PathBuf::from("/nowhere");
    let report = examine(&host.host);
    assert!(report.can_serve, "{report}");
    host.says("memory", Note, "not known: there is no /proc/meminfo", "");
    host.says("container", Good, "no container", "");
}

proptest! {
    #[test]
    fn no_bytes_in_any_file_make_it_fail(file in 0..FILES.len(), bytes in any::<Vec<u8>>(), keep in 0_usize..64) {
        let (path, text) = FILES[file];
        let kept = &text.as_bytes()[..keep.min(text.len())];
        let report = examine(&MadeUp::good().with(path, [kept, &bytes].concat()).host);
        assert!(report.findings.len() >= 14, "{report}");
    }
}

#[test]
fn gpus_are_told_with_what_they_lack() {
    let missing = "no card of NVIDIA is seen, so models run on this host's cores (driver missing, NVRTC missing, \
                   cublasLt missing, nccl missing)";
    let mut host = MadeUp::good();
    host.says("GPU", Good, missing, "");
    assert_eq!(host.entry("NVRTC"), None);
    host.host.gpus.compiler = Ok("12.9".to_owned());
    host.says("GPU", Good, "driver missing, NVRTC 12.9, cublasLt missing", "");
    // A card that the kernel lists, and nothing else.
    let host = MadeUp::good().with("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    let mut host = host.with("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    host.says("GPU", Warning, "1 card of NVIDIA cannot be used: no driver", "install NVIDIA's driver");
    host.says("NVRTC", Warning, "kernels cannot be compiled: no compiler", "nvidia-cuda-nvrtc-cu12");
    host.host.gpus.cards = Ok(Vec::new());
    host.says("GPU", Note, "sees no card", "--gpus all");
    let card = Card {
        index: 0,
        name: "NVIDIA H200".to_owned(),
        capability: Capability::new(9, 0),
        memory_bytes: 141 << 30,
        bytes_per_second: 4_800_000_000_000,
    };
    host.host.gpus = Gpus { cards: Ok(vec![card]), compiler: Ok("12.9".to_owned()), ..no_gpus() };
    host.says("GPU", Good, "cuda:0 is an NVIDIA H200, compute capability 9.0, 141 GiB, 4800 GB/s", "");
    host.says("NVRTC", Good, "version 12.9", "");
    host.says("nccl", Note, "libnccl.so.2 is not found", "libnccl2");
}
