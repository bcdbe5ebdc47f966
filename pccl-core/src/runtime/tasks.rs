//! Tasks of an event loop that do not end in silence.

use tokio::task::JoinHandle;

/// As `tokio::spawn`; besides, `broken` is called if the task panics. Without that, nobody would do
/// the task's part any more, and nobody would know.
pub(super) fn spawn<F>(task: F, broken: impl FnOnce() + Send + 'static) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let alarm = Alarm(Some(broken));
    tokio::spawn(async move {
        let _alarm = alarm;
        task.await
    })
}

/// Dropped when the task ends, in whatever way.
struct Alarm<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Alarm<F> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(broken) = self.0.take()
        {
            broken();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::unbounded_channel;

    #[tokio::test(flavor = "current_thread")]
    async fn only_a_panic_is_told() {
        let (say, mut heard) = unbounded_channel();
        let tell = |word: &'static str| {
            let say = say.clone();
            move || say.send(word).unwrap()
        };
        assert_eq!(spawn(async { 3 }, tell("ended")).await.unwrap(), 3);
        let broken = spawn(async { panic!("as planned") }, tell("panicked"));
        assert!(broken.await.is_err());
        let aborted = spawn(std::future::pending::<()>(), tell("aborted"));
        aborted.abort();
        assert!(aborted.await.is_err());
        drop(say);
        assert_eq!(heard.recv().await, Some("panicked"));
        assert_eq!(heard.recv().await, None);
    }
}
