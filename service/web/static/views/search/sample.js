// Texts to search before anybody brings their own: plain sentences, written for this page, in twelve topics.
const TOPICS = {
  accounts: `I forgot my password and cannot sign in
How do I change the e-mail address of my account?
The verification code never reaches my phone
Please delete my profile and everything you store about me
My account was locked after three wrong attempts
Two-factor sign-in keeps asking for a new code
Can I merge two accounts into one?
A colleague left, so I need to remove her access
Where do I see the devices that are signed in?
The link to confirm my address has expired
I want to sign in with my company's directory
Somebody else seems to have used my login`,
  payments: `I was charged twice for the same order
How long does a refund take to reach my bank?
The invoice shows the wrong company name
My credit card was declined although it is valid
Can I pay by bank transfer at the end of the month?
Please cancel my subscription before it renews
The discount code was not taken off the total
Where can I download last year's receipts?
We need a purchase order number on the bill
Which currency will my card be charged in?
The yearly plan costs less than twelve months
The payment went through but the order is still open`,
  delivery: `My parcel has been at the depot for four days
Can you leave the package with a neighbour?
The box arrived open and one item is missing
How much is shipping to an island?
The courier rang at the wrong address
I would like to send the shoes back for a larger size
Tracking says delivered, but nothing is here
Is it possible to choose a day for the delivery?
The vase came broken in spite of the padding
Print the return label and stick it on the carton
Customs has kept the shipment for inspection
Orders placed before noon leave the warehouse the same day`,
  cooking: `Bake the bread until the crust sounds hollow
Soak the beans overnight and drain them in the morning
A pinch of salt brings out the taste of chocolate
Fry the onions slowly until they turn golden
Whisk the egg whites before you fold in the sugar
The dough has to rise in a warm place for an hour
Add the rice when the stock begins to boil
Ripe tomatoes need nothing but oil and basil
Let the meat rest before you carve it
Steam the fish with ginger and spring onions
Too much flour makes the pastry dry
Simmer the soup with a bay leaf and peppercorns`,
  weather: `Heavy rain is expected in the mountains tomorrow
Fog in the valley will clear by noon
The first frost came early this autumn
A warm wind from the south melts the snow
Thunderstorms moved across the plain at night
It has not rained for six weeks
The barometer is falling and clouds gather in the west
Gusts on the coast may reach storm force
Hail damaged the roofs of several villages
A mild winter with hardly any snow
The sky stayed clear and the temperature dropped
Sunshine and scattered showers until the weekend`,
  animals: `Bees tell each other the way to flowers by a dance
The owl hunts at night and hardly makes a sound
A cat sleeps for most of the day
Salmon swim up the river in which they hatched
Wolves live in packs and share the hunt
The hedgehog spends the winter asleep under leaves
Swallows gather on the wires before they fly south
An octopus can squeeze through a narrow gap
The mare stood beside her foal all night
Dolphins call one another by whistles of their own
Ants carry loads many times their weight
The spider repairs its web before dawn`,
  space: `The moon always shows us the same side
Light from the sun takes eight minutes to reach the earth
Saturn's rings are made of ice and rock
A comet's tail points away from the sun
The telescope found a planet around a distant star
Jupiter is heavier than all other planets together
The probe left the solar system after forty years
Stars twinkle because the air moves
On Mars a day is a little longer than here
Astronauts see sixteen sunrises in a day
A galaxy holds hundreds of billions of stars
The eclipse darkened the town for two minutes`,
  health: `Drink enough water when you have a fever
The doctor listened to her heart and lungs
A sprained ankle should be cooled and rested
Wash the wound before you put a bandage on it
Sleep helps the body to fight an infection
The tablets are taken three times a day after meals
Regular walks lower the blood pressure
The dentist found a small hole in a molar
He is allergic to pollen and sneezes in spring
The nurse measured his pulse and temperature
A vaccine trains the body before the illness comes
Pain in the chest is a reason to call for help at once`,
  music: `The violins enter softly after the flute
She practises the piano for an hour every evening
The choir sang without any instruments
A drum keeps the dancers in step
The tenor held the last note until the audience rose
He tunes his guitar by ear
The trumpet plays the melody and the cello answers
An old waltz came from the open window
The singer wrote the words on a train
The orchestra rehearsed the slow movement twice
A minor key makes the song sound sad
The organ fills the whole church with its deepest pipes`,
  sport: `The goalkeeper caught the ball on the line
She ran the marathon in under three hours
The match was decided in the last minute
The swimmer turned and pushed off from the wall
Their striker was injured before half-time
The referee showed a second yellow card
He served an ace to win the set
The cyclists climbed the pass in the rain
The team trains on three evenings a week
A long jump needs a fast run-up
The rowers crossed the line side by side
The coach changed two players after the break`,
  computers: `The program stops with an error when the file is empty
Restart the server after the update is installed
A query without an index reads the whole table
The disk is full, so nothing more can be written
The function returns a list of numbers
Back up the database before you change its schema
The test fails only on machines with two cores
Memory grows until the process is killed
Encrypt the connection between client and server
The compiler warns about a variable that is never used
A cache makes the second request faster than the first
The browser does not load the script because of a typing mistake`,
  travel: `The night train leaves at ten from platform four
We found a small hotel beside the harbour
Book a window seat if you want to see the Alps
My flight was cancelled because of the strike
The ferry to the island takes two hours
Do I need a visa for a stay of three weeks?
The museum is closed on Mondays
We hiked along the coast and camped on the beach
A ticket for the tram is valid for one hour
The old town is best seen on foot
The suitcase did not arrive with the plane
The road to the castle winds through vineyards`,
};

export const SAMPLE = {
  name: "Sample: twelve topics",
  texts: Object.values(TOPICS).flatMap((lines) => lines.split("\n")),
  columns: [{ name: "topic", few: true, values: Object.entries(TOPICS).flatMap(([topic, lines]) => lines.split("\n").map(() => topic)) }],
};
