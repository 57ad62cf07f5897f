//! Sockets that a killed process left in a folder: they are in nobody's way, but they would become more and more.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;
use tracing::debug;

/// A socket that is younger may be about to listen, where several processes share a folder.
pub(crate) const YOUNG: Duration = Duration::from_secs(60);
/// Nobody is waited for who does not take a connection at once.
const CONNECT: Duration = Duration::from_millis(200);
/// Files that are looked at, in a folder that others fill too.
const MOST: usize = 1000;

/// Removes the sockets `PREFIX*.sock` in the folder that are at least of this age and at which nobody listens.
pub(crate) async fn remove(folder: &Path, prefix: &str, age: Duration) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let is_named = |name: &str| name.starts_with(prefix) && name.ends_with(".sock");
    let named = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_named));
    for path in named.take(MOST).map(|entry| entry.path()) {
        if is_old_socket(&path, age) && nobody_listens(&path).await {
            // Another process may have removed it, or only its owner may.
            let removed = std::fs::remove_file(&path);
            debug!(path = %path.display(), ?removed, "a socket of a process that is gone");
        }
    }
}

fn is_old_socket(path: &Path, age: Duration) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| {
        let since = metadata.modified().ok().and_then(|time| time.elapsed().ok());
        metadata.file_type().is_socket() && since.is_some_and(|since| since >= age)
    })
}

async fn nobody_listens(path: &Path) -> bool {
    let connected = timeout(CONNECT, UnixStream::connect(path)).await;
    connected.is_ok_and(|connected| connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn only_old_sockets_of_the_name_at_which_nobody_listens_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let _living = UnixListener::bind(path("data-1.sock")).expect("a socket");
        for name in ["data-2.sock", "other.sock"] {
            drop(UnixListener::bind(path(name)).expect("a socket"));
        }
        std::fs::write(path("data-3.sock"), "no socket").expect("writable");
        remove(folder.path(), "data-", YOUNG).await;
        assert!(path("data-2.sock").exists(), "it is young");
        remove(folder.path(), "data-", Duration::ZERO).await;
        let left = ["data-1.sock", "data-2.sock", "data-3.sock", "other.sock"].map(|name| path(name).exists());
        assert_eq!(left, [true, false, true, true]);
    }
}
