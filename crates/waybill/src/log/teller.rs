//! Takes what the program and its libraries tell, and makes lines of what was asked for.
//!
//! Written here and not taken from a library of subscribers: those keep every span that is open in a registry, which each
//! request would pay for, and the one thing that lines want of it is in `waybill_kernel::request`.

use std::cell::RefCell;

use jiff::Timestamp;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use waybill_kernel::{Error, Result, request};

use super::format::{self, Fields, Head};
use super::lines::Lines;
use crate::config::LogFormat;

/// A line of this length is not kept for the next one to be written into.
const KEPT_BYTES_MAX: usize = 16 << 10;

#[derive(Clone)]
pub(super) struct Teller {
    targets: Targets,
    level_max: LevelFilter,
    format: LogFormat,
    lines: Lines,
}

impl Teller {
    pub(super) fn new(targets: Targets, format: LogFormat, lines: Lines) -> Self {
        let named = targets.iter().map(|(_, level)| level);
        let level_max = named.chain(targets.default_level()).max().unwrap_or(LevelFilter::OFF);
        Self { targets, level_max, format, lines }
    }

    /// For the whole program, once.
    pub(super) fn install(self) -> Result<()> {
        // Some libraries tell by the older way.
        log::set_max_level(older(self.level_max));
        log::set_boxed_logger(Box::new(self.clone())).map_err(Error::internal)?;
        set_global_default(self).map_err(Error::internal)
    }

    fn write(&self, level: Level, target: &str, tell: impl FnOnce(&mut dyn Fields)) {
        thread_local! {
            static LINE: RefCell<String> = const { RefCell::new(String::new()) };
        }
        let id = request::current();
        // The time of the world, whatever the program's clock says.
        let head = Head { at: Timestamp::now(), level: level.as_str(), target, request: id.as_ref() };
        // A line told while one is being written (by what a field does when it is shown) has a buffer of its own.
        let mut line =
            LINE.with(|line| line.try_borrow_mut().map(|mut line| std::mem::take(&mut *line)).unwrap_or_default());
        format::line(self.format, &head, &mut line, tell);
        self.lines.add(line.as_bytes());
        line.clear();
        if line.capacity() <= KEPT_BYTES_MAX {
            LINE.with(|kept| kept.try_borrow_mut().map(|mut kept| *kept = line).ok());
        }
    }

    fn wants(&self, target: &str, level: Level) -> bool {
        level <= self.level_max && self.targets.would_enable(target, &level)
    }
}

impl Subscriber for Teller {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.wants(metadata.target(), *metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level_max)
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        self.write(*metadata.level(), metadata.target(), |fields| event.record(fields));
    }

    // Spans are never enabled, so none of these is called for one that means anything.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl log::Log for Teller {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.wants(metadata.target(), newer(metadata.level()))
    }

    fn log(&self, record: &log::Record<'_>) {
        if log::Log::enabled(self, record.metadata()) {
            self.write(newer(record.level()), record.target(), |fields| fields.sentence(*record.args()));
        }
    }

    fn flush(&self) {}
}

fn newer(level: log::Level) -> Level {
    match level {
        log::Level::Error => Level::ERROR,
        log::Level::Warn => Level::WARN,
        log::Level::Info => Level::INFO,
        log::Level::Debug => Level::DEBUG,
        log::Level::Trace => Level::TRACE,
    }
}

fn older(level: LevelFilter) -> log::LevelFilter {
    match level {
        LevelFilter::OFF => log::LevelFilter::Off,
        LevelFilter::ERROR => log::LevelFilter::Error,
        LevelFilter::WARN => log::LevelFilter::Warn,
        LevelFilter::INFO => log::LevelFilter::Info,
        LevelFilter::DEBUG => log::LevelFilter::Debug,
        LevelFilter::TRACE => log::LevelFilter::Trace,
    }
}
