//! The line between daemons and broker goes down, is still, lets nothing of the broker's words through, or is slow, several
//! times under load. Programs go on handing messages over; nobody is restarted.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::mesh::Fault;
use crate::load::Load;
use crate::mesh::Party;
use crate::mesh::line::Weather;
use crate::rng::{Rng, Stream};
use crate::server::Server;

const TIMES_MAX: u64 = 3;
const FOR_MS_MIN: u64 = 50;
const FOR_MS_MAX: u64 = 400;
const SLOW_MS_MAX: u64 = 60;
/// Between two of them, for connections to be made again.
const BETWEEN: Duration = Duration::from_millis(150);

pub struct Cut {
    rng: Rng,
    told: String,
}

impl Cut {
    pub fn new(seed: u64) -> Self {
        Cut { rng: Rng::new(seed, Stream::Fault), told: String::new() }
    }

    /// What comes, and whether the connections of before live on when it has passed.
    fn next(&mut self) -> (Weather, bool) {
        let slow = Duration::from_millis(1 + self.rng.below(SLOW_MS_MAX));
        let weather = [Weather::Down, Weather::Still, Weather::Deaf, Weather::Deaf, Weather::Slow(slow)];
        let weather = weather[self.rng.below(weather.len() as u64) as usize];
        (weather, self.rng.below(2) == 0)
    }
}

impl Fault<Party> for Cut {
    async fn strike(&mut self, party: &mut Party, broker: Server, _load: &Load) -> Result<Option<Server>> {
        let mut told = Vec::new();
        for _ in 0..1 + self.rng.below(TIMES_MAX) {
            let (weather, lives_on) = self.next();
            let lasted = FOR_MS_MIN + self.rng.below(FOR_MS_MAX - FOR_MS_MIN);
            let line = party.line()?;
            line.turn(weather);
            sleep(Duration::from_millis(lasted)).await;
            if !lives_on {
                line.turn(Weather::Down);
                sleep(Duration::from_millis(FOR_MS_MIN)).await;
            }
            line.turn(Weather::Clear);
            sleep(BETWEEN).await;
            told.push(format!("{weather:?} for {lasted} ms{}", if lives_on { "" } else { ", then cut" }));
        }
        self.told = told.join("; ");
        Ok(Some(broker))
    }

    fn told(&self) -> String {
        self.told.clone()
    }
}
