"""Training loops that others wrote, as sites of a run: one line in the user's script (docs/integrations.md).

    chaos.integrations.transformers   ChaosCallback for the Trainer of Hugging Face
    chaos.integrations.accelerate     join(accelerator, model, optimizer, scheduler)
    chaos.integrations.lightning      ChaosLightningCallback for Lightning's Trainer
    chaos.integrations.peft           settings_of(model): adapters on a base that every site has

In all of them `optimizer.step()` is a step of the run, and learning rate, number of steps and end are the run's: a
schedule that each site steps by itself, or an end after so many of its own batches, would make the sites differ in
silence. Driven by the loop's own hooks. Each module needs its library, and says so when it is imported without; nothing
else of Chaos does.
"""
