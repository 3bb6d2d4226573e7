"""temporary"""
from __future__ import annotations
from chaosd.recovery.sim_baselines import *
class Adaptive(FreeTemplates):
    name="adaptive"
    assumptions=("x",)
    def fail(self, worker, mtbf_s):
        if worker not in self.plan.workers:
            return Change(transition_s=0.0, step_s=self.step_s, unaffected=True)
        options=[]
        if not getattr(self,'uneven',False):
            r=rerouted(self.plan,[worker])
            if r is not None: options.append((0.0,r,self.ruler.step_s(r)))
        members = [[s.worker for s in p.stages if s.worker != worker and s.worker not in self.plan.lost_set] for p in self.plan.pipelines]
        c=self.choose(members)
        if c is not None:
            f=move(self.ruler,self.plan,worker,c)
            options.append((transition_s(self.ruler,f),f.plan,self.ruler.step_s(f.plan)))
        if not options: return None
        pause,plan,step=max(options,key=lambda o: mtbf_s/(o[0]+mtbf_s)/o[2])
        if pause>0: self.uneven=len({tuple(s.first_layer for s in p.stages) for p in plan.pipelines})>1
        self.plan,self.step_s=plan,step
        return Change(transition_s=pause,step_s=step)
