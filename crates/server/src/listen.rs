//! From the socket to the end: listening begins at once, the model comes later, signals end it in order.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::HeaderValue;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::CONNECTION;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use model::grammar::WORKERS as GRAMMAR_WORKERS;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::app::{App, Phase};
use crate::config::{Config, ServeError};
use crate::crowd::{BUFFER_BYTES, LOOK_TIME};
use crate::guest::{Guest, Guests, Heard, Waited};
use crate::log::LogLevel;
use crate::minute;
use crate::patience::Impatient;
use crate::routes::router;
use crate::served::Served;
use crate::spool::{self, Spool};
use crate::unread::Unread;

/// Processors for which there is one thread for connections; computing has its own threads, and where processors are few
/// every switch between both costs it time.
const PROCESSORS_AN_ASYNC_THREAD: usize = 8;
/// Most threads for connections.
const ASYNC_THREADS: usize = 4;
/// Threads that parse, render and tokenize: so many more than may wait for a grammar to be compiled, as slow ones must
/// not keep everybody else from being heard; and one that works on batches.
const BLOCKING_THREADS: usize = GRAMMAR_WORKERS + 4 + 1;
/// What streams get to send their last event in, and what clients of a dead engine get to hear of it.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Before accepting is tried again where the system has no sockets left.
const OUT_OF_SOCKETS: Duration = Duration::from_millis(50);

/// A server that listens and does not answer yet.
pub struct Server {
    /// Until it is served, and closed when no more is accepted.
    listener: Option<StdListener>,
    /// Where it listens.
    address: SocketAddr,
    app: Arc<App>,
    stop: UnboundedSender<()>,
    stopped: UnboundedReceiver<()>,
    /// How long the end may still take.
    left: Duration,
}

/// Ends a server: gently the first time, at once the second.
#[derive(Clone)]
pub struct Stopper(UnboundedSender<()>);

/// Whether SIGTERM and SIGINT end the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signals {
    /// As its stopper does.
    Obeyed,
    /// They are the caller's.
    Ignored,
}

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to, and everything under way was finished.
    Drained,
    /// It was asked to, and something under way was cut short.
    CutShort,
    /// The engine died; why.
    EngineDied(String),
    /// It was asked to, and the engine could not end well: a record that could not be written, for one.
    EndedBadly(String),
}

impl Stopper {
    /// Asks the server to end.
    pub fn stop(&self) {
        // A server that has ended needs no asking.
        let _ = self.0.send(());
    }
}

impl Server {
    /// Takes the address and the spool directory.
    ///
    /// # Errors
    /// [`ServeError::Bind`], [`ServeError::Spool`].
    pub fn bind(config: Config) -> Result<Server, ServeError> {
        let address = config.address;
        let bound = StdListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (listener, address) = bound.map_err(|source| ServeError::Bind { address, source })?;
        let spool = config.spool_dir.as_deref().map(|path| {
            Spool::open(path, &config).map_err(|source| ServeError::Spool { path: path.to_owned(), source })
        });
        let app = Arc::new(App::new(config, spool.transpose()?));
        let (stop, stopped) = unbounded_channel();
        Ok(Server { listener: Some(listener), address, app, stop, stopped, left: Duration::ZERO })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it from elsewhere.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Answers until it is ended. `load` brings the model, on a thread of its own.
    ///
    /// # Errors
    /// What `load` says, or what the system refuses.
    pub fn run<E: From<ServeError> + Send + 'static>(
        mut self,
        load: impl FnOnce() -> Result<Served, E> + Send + 'static,
        signals: Signals,
    ) -> Result<Ended, E> {
        let runtime = runtime().map_err(ServeError::System)?;
        if signals == Signals::Obeyed {
            obey(self.stop.clone()).map_err(ServeError::System)?;
        }
        let loading = self.load(load).map_err(ServeError::System)?;
        let ended = runtime.block_on(async {
            // Without keys in a file it means what it does elsewhere: the terminal is gone.
            if signals == Signals::Obeyed && self.app.config.key_source.is_some() {
                reload(&self.app).map_err(ServeError::System)?;
            }
            tokio::spawn(Arc::clone(&self.app.bell).listen());
            tokio::spawn(minute::watch(Arc::clone(&self.app)));
            tokio::spawn(spool::work(Arc::clone(&self.app)));
            self.serve(loading).await
        });
        // A batch stops between two lines; the next server goes on with it.
        self.app.advance(Phase::Ending);
        runtime.shutdown_timeout(LAST_WORDS);
        let (ended, closed) = (ended?, close(self.app, self.stopped, self.left).map_err(ServeError::System)?);
        Ok(match (ended, closed) {
            (Ended::EngineDied(why), _) => Ended::EngineDied(why),
            (_, Some(Err(why))) => Ended::EndedBadly(why),
            (_, None) => Ended::CutShort,
            (ended, Some(Ok(()))) => ended,
        })
    }

    fn load<E: Send + 'static>(
        &self,
        load: impl FnOnce() -> Result<Served, E> + Send + 'static,
    ) -> std::io::Result<oneshot::Receiver<Result<(), E>>> {
        let (told, loading) = oneshot::channel();
        let app = Arc::clone(&self.app);
        let body = move || {
            // If nobody listens, the server has ended meanwhile.
            let _ = told.send(load().map(|served| app.loaded(served)));
        };
        thread::Builder::new().name("load".into()).spawn(body)?;
        Ok(loading)
    }

    async fn serve<E: From<ServeError>>(
        &mut self,
        mut loading: oneshot::Receiver<Result<(), E>>,
    ) -> Result<Ended, E> {
        let listener = self.listener.take().expect("a server runs once");
        let listener = TcpListener::from_std(listener).map_err(ServeError::System)?;
        let guests = Guests::new();
        let (service, mut loaded) = (router(Arc::clone(&self.app)), false);
        let mut phase = self.app.phase.subscribe();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.accepted(stream, &service, Some(guests.waited())),
                    Err(_) => tokio::time::sleep(OUT_OF_SOCKETS).await,
                },
                result = &mut loading, if !loaded => {
                    result.unwrap_or_else(|_| Err(ServeError::LoadPanicked.into()))?;
                    loaded = true;
                }
                _ = self.stopped.recv() => break,
                _ = phase.wait_for(|phase| *phase > Phase::Ready) => break,
            }
        }
        self.drain(&listener, &service, guests).await
    }

    /// Somebody is here. Without `waited` the end does not wait for it.
    fn accepted(&self, stream: TcpStream, service: &Router, waited: Option<Waited>) {
        match self.app.crowd.enter() {
            Some(place) => {
                let stay = waited.map_or(Stay::OneRequest, Stay::Waited);
                connection(&self.app, stream, place, service.clone(), stay);
            }
            None => {
                let (app, service) = (Arc::clone(&self.app), service.clone());
                let look = move |stream, place| connection(&app, stream, place, service, Stay::Briefly);
                self.app.crowd.turn_away(stream, look);
            }
        }
    }

    /// Lets what is under way finish, for a time; then it is told to end. Meanwhile whoever comes hears that nothing more is
    /// begun: a balancer that looks at `/ready` sees it go.
    async fn drain<E>(
        &mut self,
        listener: &TcpListener,
        service: &Router,
        guests: Guests,
    ) -> Result<Ended, E> {
        self.app.advance(Phase::Draining);
        let told = "ending: requests under way are finished; a second signal ends at once";
        self.app.config.log.say(LogLevel::Info, "ending", told);
        let (began, most) = (Instant::now(), self.app.config.shutdown_timeout);
        let mut all_ended = pin!(guests.part());
        let mut over = pin!(tokio::time::sleep(most));
        let mut phase = self.app.phase.subscribe();
        let ended = loop {
            tokio::select! {
                // A crowd at the door keeps nobody from ending.
                biased;
                _ = self.stopped.recv() => return Ok(self.verdict(Ended::CutShort)),
                () = &mut all_ended => break Ended::Drained,
                () = &mut over => break Ended::CutShort,
                _ = phase.wait_for(|phase| *phase > Phase::Draining) => break Ended::CutShort,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.accepted(stream, service, None),
                    Err(_) => tokio::time::sleep(OUT_OF_SOCKETS).await,
                },
            }
        };
        self.app.advance(Phase::Ending);
        match ended {
            Ended::Drained => self.left = most.saturating_sub(began.elapsed()),
            _ => {
                let last_words = timeout(LAST_WORDS, all_ended);
                tokio::select! { _ = last_words => {}, _ = self.stopped.recv() => {} }
            }
        }
        Ok(self.verdict(ended))
    }

    fn verdict(&self, ended: Ended) -> Ended {
        match &*self.app.phase.borrow() {
            Phase::Dead(why) => Ended::EngineDied(why.clone()),
            _ => ended,
        }
    }
}

/// How long a connection is served.
enum Stay {
    /// Until it ends, and the server's end waits for it.
    Waited(Waited),
    /// For a request.
    OneRequest,
    /// For a request that comes and is answered at once.
    Briefly,
}

/// Serves a connection, which has a place.
fn connection(app: &Arc<App>, stream: TcpStream, place: impl Send + 'static, service: Router, stay: Stay) {
    // Small events should not wait for large packets; if the system will not, they wait.
    let _ = stream.set_nodelay(true);
    let guest = Arc::new(Guest::default());
    let stream = Impatient::new(stream, app.config.send_timeout);
    let stream = Unread::new(stream, Arc::clone(&guest), Arc::clone(app));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    // What is sent is mostly small events: one piece of memory is written faster than three.
    http.writev(false);
    http.header_read_timeout(app.config.header_timeout).max_buf_size(BUFFER_BYTES);
    http.keep_alive(matches!(stay, Stay::Waited(_)));
    let (service, heard) = (TowerToHyperService::new(service), Arc::clone(&guest));
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::new(heard.answering()));
        let answer = service.call(request.map(|body| Heard::new(body, Arc::clone(&heard))));
        let heard = Arc::clone(&heard);
        async move {
            let mut answer = answer.await?;
            // Nobody reads the rest of that body, and no other request behind it: who keeps connections is to hear that.
            if heard.has_left_a_body() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http.serve_connection(TokioIo::new(stream), answer);
    // How a connection ends is the client's affair: whatever it asked for is dropped with it.
    tokio::spawn(async move {
        let (_place, mut connection) = (place, pin!(connection));
        let mut waited = match stay {
            Stay::Waited(waited) => waited,
            Stay::OneRequest => return drop(connection.await),
            Stay::Briefly => return drop(timeout(LOOK_TIME, connection).await),
        };
        tokio::select! {
            _ = connection.as_mut() => return,
            () = waited.end() => {}
        }
        if guest.heard() > 0 {
            connection.as_mut().graceful_shutdown();
            drop(connection.await);
            return drop(waited);
        }
        // Nothing was heard on it yet. It is not waited for, and what comes while others are is answered, once.
        drop(waited);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = guest.first() => {}
        }
        connection.as_mut().graceful_shutdown();
        drop(connection.await);
    });
}

/// Ends the engine, and says what went wrong by then. Its step may take long, and is waited for no longer than the end may take (`left`):
/// nothing then, and the process may go. What is written is whole at any time: answers of batches and records by lines,
/// all else by whole files.
fn close(
    app: Arc<App>,
    mut stopped: UnboundedReceiver<()>,
    left: Duration,
) -> std::io::Result<Option<Result<(), String>>> {
    // A thread that outlived the runtime may hold the state: then the engine ends with it, unheard.
    let Some(served) = Arc::into_inner(app).and_then(App::into_served) else { return Ok(Some(Ok(()))) };
    let (told, finished) = oneshot::channel();
    let end = move || {
        // If nobody listens, it was not waited for.
        let _ = told.send(served.engine.finish().map_err(|why| why.to_string()));
    };
    thread::Builder::new().name("close".into()).spawn(end)?;
    Ok(Builder::new_current_thread().enable_time().build()?.block_on(async {
        tokio::select! {
            biased;
            finished = finished => Some(finished.unwrap_or_else(|_| Err("ending the engine panicked".into()))),
            Some(()) = stopped.recv() => None,
            () = tokio::time::sleep(left.saturating_add(LAST_WORDS)) => None,
        }
    }))
}

fn runtime() -> std::io::Result<Runtime> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads((processors / PROCESSORS_AN_ASYNC_THREAD).clamp(1, ASYNC_THREADS))
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("http")
        .enable_all()
        .build()
}

/// Makes SIGHUP read the keys anew.
fn reload(app: &Arc<App>) -> std::io::Result<()> {
    let (mut signals, app) = (signal(SignalKind::hangup())?, Arc::clone(app));
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            let app = Arc::clone(&app);
            // The file may be on a slow disk; whether it was read is the source's to tell.
            drop(tokio::task::spawn_blocking(move || app.reload_keys()).await);
        }
    });
    Ok(())
}

/// Makes signals stop the server, on a thread of their own: they are heard until the process ends.
fn obey(stop: UnboundedSender<()>) -> std::io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let listening =
        || Ok::<_, std::io::Error>((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?));
    let (mut terminate, mut interrupt) = runtime.block_on(async { listening() })?;
    let hear = async move {
        loop {
            tokio::select! {
                Some(()) = terminate.recv() => {}
                Some(()) = interrupt.recv() => {}
                else => return,
            }
            if stop.send(()).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(move || runtime.block_on(hear)).map(drop)
}
